"""Who holds the memory of a node: the table of processes in Ray's message, summed by what they are."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import Hit
from rldbg.doctor.logs.sources import LogSource

ENTRY = "ray-host-oom-killed"
_ROW = re.compile(r"\s*(?P<pid>\d{2,8})\s+(?P<gb>\d{1,5}(?:\.\d+)?)\s+(?P<command>[A-Za-z/(\[]\S*(?: .*)?)$")
_TOTAL = re.compile(r"\bwas (?:running was )?(?P<used>[\d.]+) ?GB(?: used)? ?/ ?(?P<total>[\d.]+) ?GB")
_TASK = re.compile(r"ray::(?P<name>[A-Za-z_]\w*)(?:\.(?P<method>\w+))?")
_PROGRAM = re.compile(r"(?:\S*/)?(?P<name>[\w.+-]+)(?: -m (?P<module>[\w.]+)| (?P<script>\S+\.py))?")
_ROWS = 40
_MOST = 0.3
"""A group with this share of the node's memory is told; below it many share it."""
_STEPS = (
    (
        re.compile(r"(?i)reward|judge|scor|grad(?:e|ing)|verif|sandbox"),
        "reward processes: bound how many run at a time, and what they keep (parsed answers, child processes, caches)",
    ),
    (
        re.compile(r"(?i)enginecore|\bengine|rollout(?!_generate)|llm|scheduler"),
        "processes of the engine: a sleeping engine keeps a copy of its weights in RAM (sleep level 2 or freeing it "
        "instead of offloading avoids that); swap space and a host cache add to it (swap_space, cpu_offload_gb)",
    ),
    (
        re.compile(r"(?i)data_?load|pt_data|dataset|preprocess|multiprocessing|forkserver"),
        "workers of the data loader: lower num_workers and prefetch_factor; every one holds its own copy of a data set "
        "that is a list of Python objects",
    ),
    (
        re.compile(r"(?i)raylet|plasma|ray::IDLE|object_store"),
        "the object store: lower object_store_memory, send batches in parts, and drop references to old rollouts",
    ),
    (
        re.compile(r"(?i)main_?task|taskrunner|driver|main_ppo|controller|trainer\b"),
        "the driver: it holds the data set and the batches of a step; smaller batches, no images in the batch, and no "
        "copies of old ones",
    ),
    (
        re.compile(r"(?i)worker|actor|policy|critic|ref|fsdp|megatron|train"),
        "training workers: each rank of a node holds its own offloaded parameters and optimizer state in RAM. Switch "
        "off the offload of the optimizer first (optimizer_offload, offload_train, CPU Adam: 12 to 16 bytes for each "
        "parameter of its shard), then that of the parameters and the copy that the engine in the same process keeps "
        "while it sleeps; or spread the shards over more nodes",
    ),
)


class _Process(NamedTuple):
    name: str
    method: str
    gb: float


def told_of_memory_table(hits: Sequence[Hit], sources: Sequence[LogSource]) -> CauseWords | None:
    """Which processes hold how much of the node's memory, and the step that follows."""
    text = " ".join(hit.text for hit in hits)
    processes = next((found for hit in hits if (found := _table(hit, sources))), [])
    total = _TOTAL.search(text)
    if not processes:
        return None
    groups = sorted({each.name for each in processes}, key=lambda name: -_sum(processes, name))
    first = [each for each in processes if each.name == groups[0]]
    held = _sum(processes, groups[0])
    whole = float(total["total"]) if total else 0.0
    of_node = f" of the {whole:.1f} GB of the node ({held / whole:.0%})" if whole else ""
    methods = sorted({each.method for each in first if each.method})
    doing = f", in {' and '.join(methods[:2])}" if methods else ""
    each = f" ({max(one.gb for one in first):.1f} GB the largest)" if len(first) > 1 else ""
    some = f"{len(first)} processes {groups[0]} hold" if len(first) > 1 else f"one process {groups[0]} holds"
    rest = [f"{name} {_sum(processes, name):.1f} GB" for name in groups[1:3] if _sum(processes, name) >= 1.0]
    detail = f"{some} {held:.1f} GB{of_node}{each}{doing}" + (f"; next come {' and '.join(rest)}" if rest else "")
    if whole and held < _MOST * whole:
        listed = sum(one.gb for one in processes)
        return CauseWords(
            f"{detail}; the {len(processes)} largest processes together hold {listed:.1f} GB, so that the rest is in "
            "shared memory (object store, /dev/shm) or in processes that the table does not show.",
            fix=("See what is in shared memory: df -h /dev/shm; ray memory --stats-only; ls -lS /dev/shm",),
        )
    step = next((words for shape, words in _STEPS if shape.search(groups[0])), "")
    return CauseWords(f"{detail}.", fix=(f"These are {step}",) if step else ())


def _sum(processes: Sequence[_Process], name: str) -> float:
    return sum(each.gb for each in processes if each.name == name)


def _table(hit: Hit, sources: Sequence[LogSource]) -> list[_Process]:
    """The rows below a line; each process once."""
    source = next((each for each in sources if each.name == hit.place.file), None)
    rows = rows_of(source)[hit.place.line - 1 :] if source is not None else []
    found: dict[str, _Process] = {}
    for text in _texts(rows):
        row = _ROW.match(text)
        if row is not None:
            found.setdefault(row["pid"], _named(row["command"], float(row["gb"])))
        elif found:
            break
    return list(found.values())


def _texts(rows: Sequence[bytes]) -> Iterator[str]:
    for raw in islice(rows, _ROWS):
        text = clean(raw).text
        if "\\n" in text and "\\t" in text:  # one message in quotes
            yield from (part.replace("\\t", "\t") for part in text.split("\\n"))
        else:
            yield text


def _named(command: str, gb: float) -> _Process:
    if task := _TASK.search(command):
        return _Process(task["name"], task["method"] or "", gb)
    program = _PROGRAM.match(command)
    name = (program["module"] or program["script"] or program["name"]) if program else command[:40]
    return _Process(name.rpartition("/")[2], "", gb)
