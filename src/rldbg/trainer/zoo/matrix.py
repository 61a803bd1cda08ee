"""The zoo under real numerical noise: clean pairs and bugs, split differently and with different kernels.

Libraries choose their kernels when a process starts, so the runs of one kernel share a process. All runs of a seed
start from the same warm-started weights, which the first one leaves in the folder, and share a reference run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rldbg.core import Environment, IncompleteDataError
from rldbg.trainer.zoo.bug import Bug
from rldbg.trainer.zoo.catalogue import BUGS, find_bug
from rldbg.trainer.zoo.judging import compared
from rldbg.trainer.zoo.pairs import SILENT
from rldbg.trainer.zoo.runs import ZooRunner

# Settings unknown to the libraries of a machine have no effect there.
_KERNELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("", {}),
    ("mkl-sse4_2", {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}),
    ("mkl-avx2", {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}),
    ("mkl-avx512", {"MKL_ENABLE_INSTRUCTIONS": "AVX512"}),
    ("aten-default", {"ATEN_CPU_CAPABILITY": "default"}),
    ("openblas-armv8", {"OPENBLAS_CORETYPE": "ARMV8"}),
)
_CUTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ranks-1", ("policy.ranks=1",)),
    ("ranks-4", ("policy.ranks=4",)),
    *((f"micro-{size}", (f"policy.micro_batch_size={size}",)) for size in (1, 2, 3, 4, 6, 7, 8)),
    ("micro-8-ranks-1", ("policy.micro_batch_size=8", "policy.ranks=1")),
    ("threads-2", ("threads=2",)),
)
# What no recipe has a key for, injected: other ways to compute the same.
_VARIATIONS = ("more-padding", "more-padding-on-the-right", "packed", "eager-attention")
# How both sides of a pair compute.
_PRECISIONS = ("", "bfloat16-compute", "bfloat16-engine", "float16-compute")
_ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}


class Reference(NamedTuple):
    """The run that cells are compared with: its settings, and the variation that gives its precision."""

    seed: int
    settings: tuple[str, ...] = ()
    precision: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run to compare with its reference run; of a bug, or computed in another way that changes nothing."""

    name: str
    reference: Reference
    environment: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    bug: str | None = None
    variation: str = ""


@dataclass(frozen=True, slots=True)
class CellScore:
    """The verdict of compare on a cell, and whether it is right."""

    name: str
    bug: str | None
    verdict: str
    stage: str | None
    causes: tuple[str, ...]
    right: bool
    wrongly_named: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def matrix_cells(seeds: int, *, cuda: bool) -> list[Cell]:
    """Clean runs of every seed and precision under all cuts, kernels and variations; every bug under one of them."""
    found = []
    for seed in range(seeds):
        for precision in _PRECISIONS:
            reference = Reference(seed, (), precision)
            for place, (cut, overrides) in enumerate(_CUTS):
                # Every cut has every kernel, in turn, over the seeds and precisions.
                kernel, environment = _KERNELS[(place + seed + _PRECISIONS.index(precision)) % len(_KERNELS)]
                name = "/".join(filter(None, (f"seed-{seed}", precision, cut, kernel)))
                found.append(Cell(name, reference, {**_ON_CPU, **environment}, overrides))
            for variation in _VARIATIONS:
                name = "/".join(filter(None, (f"seed-{seed}", precision, variation)))
                found.append(Cell(name, reference, _ON_CPU, variation=variation))
        if cuda:
            found += [Cell(f"seed-{seed}/cuda-{cut}", Reference(seed), {}, overrides) for cut, overrides in _CUTS]
    return found + [_of_bug(place, bug) for place, bug in enumerate(BUGS)]


def _of_bug(place: int, bug: Bug) -> Cell:
    """A bug under one kernel and one cut in which it changes something."""
    kernel, environment = _KERNELS[place % len(_KERNELS)]
    cuts = [cut for cut in _CUTS if bug.needs.isdisjoint(_lacks(cut[1]))]
    cut, overrides = cuts[place % len(cuts)]
    name = "/".join(filter(None, (bug.name, cut, kernel)))
    return Cell(name, Reference(0, bug.overrides), {**_ON_CPU, **environment}, overrides, bug.name)


def _lacks(overrides: tuple[str, ...]) -> Iterator[str]:
    if "policy.ranks=1" in overrides:
        yield "ranks"
    if "policy.micro_batch_size=1" in overrides:
        yield "padding"


def score_matrix(
    chosen: Sequence[Cell],
    recipe: Path,
    folder: Path,
    *,
    processes: int,
    on_row: Callable[[CellScore], None] = lambda _row: None,
) -> list[CellScore]:
    """Every cell beside its reference run, several at a time."""
    references = {
        reference: number for number, reference in enumerate(dict.fromkeys(cell.reference for cell in chosen))
    }
    # Plain runs come first: they leave the starting weights for the others.
    plain = [reference for reference in references if not reference.precision]
    rest = [reference for reference in references if reference.precision]
    tasks = {
        cell.name: _task(cell, references, number, recipe, folder)
        for number, cell in enumerate(chosen, start=_CELLS_FROM)
    }
    by_kernel: dict[str, list[Cell]] = defaultdict(list)
    for cell in chosen:
        by_kernel[json.dumps(cell.environment)].append(cell)
    rows = {}
    with ThreadPoolExecutor(processes) as pool:
        for part in (plain, rest):
            waiting = [
                pool.submit(_answers, [_reference_task(reference, references[reference], recipe, folder)], _ON_CPU)
                for reference in part
            ]
            for done in waiting:
                done.result()
        groups = [
            cells[at : at + _PER_PROCESS] for cells in by_kernel.values() for at in range(0, len(cells), _PER_PROCESS)
        ]
        running = {
            pool.submit(_answers, [tasks[cell.name] for cell in cells], cells[0].environment): cells for cells in groups
        }
        for future in as_completed(running):
            for cell, answer in zip(running[future], future.result(), strict=True):
                rows[cell.name] = _judged(cell, answer)
                on_row(rows[cell.name])
    return [rows[cell.name] for cell in chosen]


_CELLS_FROM = 1000
_PER_PROCESS = 16
_CHILD = "from rldbg.trainer.zoo.matrix import run_tasks; run_tasks()"
_Answer = tuple[str, str | None, tuple[str, ...]]


def _judged(cell: Cell, answer: _Answer) -> CellScore:
    verdict, stage, causes = answer
    if cell.bug is None:
        return CellScore(cell.name, None, verdict, stage, causes, verdict in SILENT, bool(causes))
    bug = find_bug(cell.bug)
    named = bool(causes) and causes[0] in bug.causes
    right = verdict == "different" and stage == bug.stage
    return CellScore(cell.name, cell.bug, verdict, stage, causes, right, bool(causes) and not named)


def _reference_task(reference: Reference, number: int, recipe: Path, folder: Path) -> dict[str, Any]:
    injected = (f"++zoo.bug={reference.precision}",) if reference.precision else ()
    overrides = [f"seed={reference.seed}", *reference.settings, *injected]
    return {"recipe": str(recipe), "folder": str(folder), "number": number, "base": None, "overrides": overrides}


def _task(cell: Cell, references: dict[Reference, int], number: int, recipe: Path, folder: Path) -> dict[str, Any]:
    base = folder / "recordings" / str(references[cell.reference])
    reference = cell.reference
    overrides = [f"seed={reference.seed}", *reference.settings, *cell.overrides]
    if injected := [name for name in (reference.precision, cell.variation, cell.bug) if name]:
        overrides.append(f"++zoo.bug={'+'.join(injected)}")
    if cell.bug is None:
        overrides += ["++rollout_worker.type=mock", "++rollout_worker.need_llm_inference=false"]
        overrides.append(f"++rollout_worker.trajectory_load_path={base}")
    return {"recipe": str(recipe), "folder": str(folder), "number": number, "base": str(base), "overrides": overrides}


def _answers(tasks: Sequence[dict[str, Any]], environment: dict[str, str]) -> list[_Answer]:
    """The answers of one process to these tasks, in order."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(tasks),
        env={**Environment().everything(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    files = [_answer(Path(task["folder"]), task["number"]) for task in tasks]
    if done.returncode:
        failed = next((task for task, file in zip(tasks, files, strict=True) if not file.exists()), tasks[0])
        overrides = " ".join(failed["overrides"])
        raise IncompleteDataError(
            f"the run with {overrides} failed: {done.stderr.strip()[-400:]}", "try it by `rldbg train zoo`"
        )
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return [(verdict, stage, tuple(causes)) for verdict, stage, causes in found]


def _answer(folder: Path, number: int) -> Path:
    return folder / f"verdict-{number}.json"


def run_tasks() -> None:
    """What the process of some cells does; its answers are files. Only recordings of references are kept."""
    for task in json.load(sys.stdin):
        folder, number = Path(task["folder"]), task["number"]
        answer = _answer(folder, number)
        if answer.exists():
            continue
        runner = ZooRunner(Path(task["recipe"]), folder)
        made = runner.run(number, task["overrides"])
        result = ("equal", None, ()) if task["base"] is None else compared(Path(task["base"]), made.recording)
        if task["base"] is not None:
            runner.delete(number)
        answer.write_text(json.dumps(result), encoding="utf-8")
