"""Runs the cells of the matrix and judges them, several processes at a time.

Libraries choose their kernels when a process starts, so the runs of one kernel share processes. All runs of a seed
start from the same warm-started weights, which the first one leaves in the folder, and cells share their reference run.
Every verdict is one line of `matrix.jsonl`, written at once, so that what was interrupted continues.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Any, NamedTuple, TypedDict

from rldbg.core import Environment
from rldbg.trainer.zoo.catalogue import find_bug
from rldbg.trainer.zoo.judging import BELOW_NOISE, NO_EFFECT, compared, hidden_by
from rldbg.trainer.zoo.matrix import ON_CPU, Cell, Reference
from rldbg.trainer.zoo.pairs import SILENT
from rldbg.trainer.zoo.runs import ZooRunner

FAILED = "failed"
RESULTS = "matrix.jsonl"
_MOST_PER_PROCESS = 16
_CHILD = "from rldbg.trainer.zoo.matrix_runs import run_tasks; run_tasks()"
# A run sets the threads of torch itself; other libraries would start one per core in each of the processes.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Settings that the starting weights depend on.
_OF_WEIGHTS = ("model.", "data.", "warm_start.")
_REPLAY = ("++rollout_worker.type=mock", "++rollout_worker.need_llm_inference=false")


@dataclass(frozen=True, slots=True)
class CellScore:
    """The verdict of compare on a cell, or `failed`, and whether it is right.

    `recordings` are those of the reference and, unless all is right, of the cell; `error` says why a run failed.
    `hidden` says of a bug that was not found why it cannot be: beside a clean run that is otherwise the same it changes
    nothing, or nothing that exceeds the noise, by size or by shape.
    """

    name: str
    bug: str | None
    verdict: str
    stage: str | None
    causes: tuple[str, ...]
    right: bool
    named: bool
    wrongly_named: bool
    seconds: float
    recordings: tuple[str, ...]
    error: str = ""
    hidden: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MatrixScore:
    """The rows of all cells that were judged, and how many were not because time was up."""

    rows: tuple[CellScore, ...]
    left: int

    @property
    def wrong(self) -> tuple[CellScore, ...]:
        """False alarms, bugs that were not found and placed or that were named wrongly, and runs that failed."""
        return tuple(row for row in self.rows if not (row.right or row.hidden) or row.wrongly_named)

    def totals(self) -> dict[str, int]:
        judged = [row for row in self.rows if row.verdict != FAILED]
        clean, spoiled = ([row for row in judged if (row.bug is None) is kind] for kind in (True, False))
        return {
            "clean_pairs": len(clean),
            "false_alarms": sum(not row.right for row in clean),
            "bugs": len(spoiled),
            "without_effect": sum(row.hidden == NO_EFFECT for row in spoiled),
            "below_the_noise": sum(row.hidden == BELOW_NOISE for row in spoiled),
            "found": sum(row.verdict == "different" for row in spoiled),
            "placed": sum(row.right for row in spoiled),
            "named": sum(row.named for row in spoiled),
            "wrongly_named": sum(row.wrongly_named for row in spoiled),
            FAILED: len(self.rows) - len(judged),
            "not_judged": self.left,
        }

    def to_dict(self) -> dict[str, Any]:
        return {"totals": self.totals(), "rows": [row.to_dict() for row in self.rows]}


class _Task(TypedDict):
    """What a child process is told about one run; `base` is the recording to compare with, none for a reference."""

    name: str
    recipe: str
    folder: str
    number: int
    base: str | None
    bug: str | None
    overrides: list[str]
    # Of the run that is the same but for the bug.
    clean_overrides: list[str]


class _Group(NamedTuple):
    """Tasks for one process, and the variables of its environment."""

    tasks: list[_Task]
    environment: dict[str, str]


def score_matrix(
    chosen: Sequence[Cell],
    recipe: Path,
    folder: Path,
    *,
    processes: int,
    minutes: float | None = None,
    on_row: Callable[[CellScore], None] = lambda _row: None,
) -> MatrixScore:
    """Runs every cell and its reference run; after `minutes` no further run begins."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = {row.name: row for row in _judged_before(folder)}
    left = [cell for cell in chosen if cell.name not in rows]
    deadline = None if minutes is None else time.time() + 60 * minutes
    names, lock = {cell.name for cell in left}, Lock()

    def judge(group: _Group) -> None:
        for row in _answers(group, deadline):
            if row.name not in names:
                continue  # a reference; without it the cells fail
            with lock, (folder / RESULTS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row.to_dict()) + "\n")
                rows[row.name] = row
            on_row(row)

    references = list(dict.fromkeys(cell.reference for cell in left))
    with ThreadPoolExecutor(processes) as pool:
        for part in (_making_weights(references), references):
            tasks = [_reference_task(reference, recipe, folder) for reference in part]
            list(pool.map(judge, [_Group(tasks[at::processes], ON_CPU) for at in range(processes)]))
        list(pool.map(judge, _groups(left, recipe, folder, processes)))
    found = tuple(rows[cell.name] for cell in chosen if cell.name in rows)
    return MatrixScore(found, len(chosen) - len(found))


def _judged_before(folder: Path) -> list[CellScore]:
    """The rows of earlier runs in this folder, without those that failed; a line that was cut off is removed."""
    file = folder / RESULTS
    whole, _end, cut_off = (file.read_text(encoding="utf-8") if file.exists() else "").rpartition("\n")
    if cut_off:
        file.write_text(whole + "\n" if whole else "", encoding="utf-8")
    return [row for row in map(_row, filter(None, whole.split("\n"))) if row.verdict != FAILED]


def _making_weights(references: Sequence[Reference]) -> list[Reference]:
    """A plain run for each of the starting weights that these need: where two make the same ones, they are equal."""
    return list(
        dict.fromkeys(
            Reference(
                item.seed, tuple(setting for setting in item.settings if setting.lstrip("+").startswith(_OF_WEIGHTS))
            )
            for item in references
        )
    )


def _groups(cells: Sequence[Cell], recipe: Path, folder: Path, processes: int) -> Iterator[_Group]:
    """Cells of the same kernel, so many that every process gets some; the kernels by turns, as time may end."""
    by_kernel: dict[tuple[tuple[str, str], ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        by_kernel[tuple(cell.environment.items())].append(cell)
    size = max(1, min(_MOST_PER_PROCESS, len(cells) // (2 * processes)))
    for at in range(0, len(cells), size):
        for kernel, members in by_kernel.items():
            if members[at:]:
                yield _Group([_task(cell, recipe, folder) for cell in members[at : at + size]], dict(kernel))


def _number(item: Cell | Reference) -> int:
    """The same for the same run in every matrix that a folder is used for; recordings are named by it."""
    text = item.name if isinstance(item, Cell) else repr(tuple(item))
    return int(sha256(text.encode()).hexdigest()[:10], 16)


def _reference_task(reference: Reference, recipe: Path, folder: Path) -> _Task:
    injected = [f"++zoo.bug={reference.precision}"] if reference.precision else []
    return _Task(
        name=str(reference),
        recipe=str(recipe),
        folder=str(folder),
        number=_number(reference),
        base=None,
        bug=None,
        overrides=[f"seed={reference.seed}", *reference.settings, *injected],
        clean_overrides=[],
    )


def _task(cell: Cell, recipe: Path, folder: Path) -> _Task:
    reference = cell.reference
    base = folder / "recordings" / str(_number(reference))
    plain = [f"seed={reference.seed}", *reference.settings, *cell.overrides]
    ways = [name for name in (reference.precision, cell.variation) if name]
    overrides, clean = ([*plain, *_injected(names)] for names in ([*ways, *filter(None, [cell.bug])], ways))
    if cell.bug is None:
        overrides += [*_REPLAY, f"++rollout_worker.trajectory_load_path={base}"]
    return _Task(
        name=cell.name,
        recipe=str(recipe),
        folder=str(folder),
        number=_number(cell),
        base=str(base),
        bug=cell.bug,
        overrides=overrides,
        clean_overrides=clean,
    )


def _injected(names: Sequence[str]) -> list[str]:
    return [f"++zoo.bug={'+'.join(names)}"] if names else []


def _answers(group: _Group, deadline: float | None) -> Iterator[CellScore]:
    """The rows of a process for these tasks as they come; another takes over where one fails."""
    left = list(group.tasks)
    while left and (deadline is None or time.time() < deadline):
        with TemporaryFile("w+", encoding="utf-8") as log:
            child = _start(_Group(left, group.environment), deadline, log)
            with child:
                for line in child.stdout or ():
                    left.pop(0)
                    yield _row(line)
            if child.returncode == 0:
                return
            log.seek(0)
            yield _failed(left.pop(0), f"exit code {child.returncode}, {log.read().strip()[-400:]}")


def _start(group: _Group, deadline: float | None, log: IO[str]) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={**Environment().everything(), **_ONE_THREAD, **group.environment},
        text=True,
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps({"tasks": group.tasks, "deadline": deadline}))
    child.stdin.close()
    return child


def _row(line: str) -> CellScore:
    fields = json.loads(line)
    return CellScore(**fields | {"causes": tuple(fields["causes"]), "recordings": tuple(fields["recordings"])})


def run_tasks() -> None:
    """What a child process does: one line per task on stdout."""
    answers, sys.stdout = sys.stdout, sys.stderr
    told = json.load(sys.stdin)
    for task in told["tasks"]:
        if told["deadline"] is not None and time.time() >= told["deadline"]:
            return
        answers.write(json.dumps(_run(task).to_dict()) + "\n")
        answers.flush()


def _failed(task: _Task, error: str) -> CellScore:
    said = f"the run with {' '.join(task['overrides'])} failed: {error}"
    return CellScore(task["name"], task["bug"], FAILED, None, (), False, False, False, 0.0, (), said)


def _run(task: _Task) -> CellScore:
    """Makes a run and compares it with its reference. Recordings of cells that are judged right are not kept."""
    started = time.process_time()
    runner = ZooRunner(Path(task["recipe"]), Path(task["folder"]))
    made = runner.run(task["number"], task["overrides"])
    base = task["base"]
    verdict, stage, causes = ("equal", None, ()) if base is None else compared(Path(base), made.recording)
    if task["bug"] is None:
        right, named, wrong = verdict in SILENT, False, bool(causes)
    else:
        bug = find_bug(task["bug"])
        right, named = verdict == "different" and stage == bug.stage, bool(causes) and causes[0] in bug.causes
        wrong = bool(causes) and not named
    if base is not None and right and not wrong:
        runner.delete(task["number"])
    hidden = ""
    if base is not None and task["bug"] is not None and verdict != "different":
        twin = task["number"] + 1
        hidden = hidden_by(Path(base), runner.run(twin, task["clean_overrides"]).recording, made.recording)
        runner.delete(twin)
    recordings = () if base is None else (base, str(made.recording))
    seconds = time.process_time() - started
    return CellScore(
        task["name"],
        task["bug"],
        verdict,
        stage,
        causes,
        right,
        named,
        wrong,
        round(seconds, 2),
        recordings,
        "",
        hidden,
    )
