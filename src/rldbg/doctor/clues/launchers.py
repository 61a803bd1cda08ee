"""Several launchers on one node that want one port: each task of a scheduler started its own."""

import re
from collections.abc import Iterator, Sequence

from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import Line, clean
from rldbg.doctor.logs.evidence import Hit
from rldbg.doctor.logs.sources import LogSource

ENTRY = "port-in-use"
_LAUNCHER = re.compile(
    r"\b(?P<name>torchrun|torch\.distributed\.(?:run|launch)|colossalai run|accelerate launch|deepspeed|swift \w+)\b"
    r".{0,600}?--?(?:nproc[-_]per[-_]node|num_processes|num_gpus)[ =](?P<count>\d{1,3}|gpu|auto)\b"
)
_PER_NODE = re.compile(r"(?:NPROC_PER_NODE|nproc[-_]per[-_]node)[\"']?[ =:]{1,3}(?P<count>\d{1,3})\b")
_TASKS = re.compile(r"\bsrun: error: (?P<host>[\w.-]{1,60}): tasks (?P<tasks>\d[\d,-]*): ")
_TASKS_ASKED = re.compile(r"(?:--ntasks-per-node[ =]|SLURM_NTASKS_PER_NODE=|\bppr:)(?P<tasks>\d{1,3})\b")
_PORT = re.compile(r"(?:\]|0\.0\.0\.0|port[: =]{1,3}|:)[: ]*(?P<port>\d{4,5})\b")
_LINE_LETTERS = 4000


def told_of_launchers(hits: Sequence[Hit], sources: Sequence[LogSource]) -> CauseWords | None:
    """Why one port is taken on a node, where several of its tasks failed and a launcher starts several processes."""
    lines = list(_lines(hits, sources))
    texts = [line.text[:_LINE_LETTERS] for line in lines]
    launcher = next((found for text in texts if (found := _LAUNCHER.search(text))), None)
    per_node = launcher or next((found for text in texts if (found := _PER_NODE.search(text))), None)
    if per_node is None or per_node["count"] == "1":
        return None
    tasks, where = _tasks_of_one_node(texts)
    if tasks < 2:
        return None
    name = launcher["name"] if launcher else "the launcher"
    port = next((found["port"] for hit in hits if (found := _PORT.search(hit.matched) or _PORT.search(hit.text))), "")
    which = f"port {port}" if port else "the same port"
    return CauseWords(
        f"{where}, and each of them seems to start {name}, which starts {per_node['count']} processes itself and "
        f"listens on {which}: only the first one gets it",
        "The port is already in use: several tasks of one node each start their own launcher",
        "端口已被占用：同一节点上的多个任务各自启动了 launcher",
        fix=(
            "Start one task per node, and let the launcher start the processes of its GPUs: srun --ntasks-per-node=1 "
            "(#SBATCH --ntasks-per-node=1, mpirun --map-by ppr:1:node); or no launcher at all, with one task per GPU "
            "and RANK, LOCAL_RANK and WORLD_SIZE from the scheduler",
        ),
    )


def _tasks_of_one_node(texts: Sequence[str]) -> tuple[int, str]:
    """How many tasks ran on one node, in words too; 0 where the logs do not tell."""
    for text in texts:
        if (found := _TASKS.search(text)) and (count := _count(found["tasks"])) > 1:
            return count, f"tasks {found['tasks']} of {found['host']} failed"
    for text in texts:
        if (found := _TASKS_ASKED.search(text)) and int(found["tasks"]) > 1:
            return int(found["tasks"]), f"{found['tasks']} tasks were started per node"
    return 0, ""


def _count(tasks: str) -> int:
    """How many numbers a list such as `0-5,7` has."""
    total = 0
    for part in filter(None, tasks.split(",")):
        first, _dash, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _lines(hits: Sequence[Hit], sources: Sequence[LogSource]) -> Iterator[Line]:
    files = {hit.place.file for hit in hits}
    for source in sources:
        if source.name in files:
            yield from (clean(raw) for raw in rows_of(source))
