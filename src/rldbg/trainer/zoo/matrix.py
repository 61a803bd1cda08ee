"""The zoo under real numerical noise: clean pairs and bugs, split differently and with different kernels.

Libraries choose their kernels when a process starts, so every run is a separate process. All runs of a seed start
from the same warm-started weights, which the first one leaves in the folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rldbg.core import Environment, IncompleteDataError
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
    ("micro-1", ("policy.micro_batch_size=1",)),
    ("micro-3", ("policy.micro_batch_size=3",)),
    ("micro-8-ranks-1", ("policy.micro_batch_size=8", "policy.ranks=1")),
    ("threads-2", ("threads=2",)),
)
# What no recipe has a key for, injected.
_VARIATIONS = ("more-padding", "eager-attention")
_STEPS = "steps=4"
_ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run to compare with the plain run of its seed, or, for a bug, with the plain run of its settings."""

    name: str
    seed: int
    environment: dict[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    bug: str | None = None
    variation: str | None = None


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
    """Clean runs of every seed under every cut and kernel, and every bug under one of them."""
    found = []
    devices = [("", _ON_CPU)] + ([("cuda-", {})] if cuda else [])
    for seed in range(seeds):
        for prefix, device in devices:
            for kernel, environment in _KERNELS if not prefix else _KERNELS[:1]:
                for cut, overrides in _CUTS:
                    name = f"seed-{seed}/{prefix}{cut}" + (f"/{kernel}" if kernel else "")
                    found.append(Cell(name, seed, {**device, **environment}, overrides))
        for variation in _VARIATIONS:
            found.append(Cell(f"seed-{seed}/{variation}", seed, _ON_CPU, variation=variation))
    plain = [bug for bug in BUGS if not bug.overrides]
    for place, bug in enumerate(plain):
        kernel, environment = _KERNELS[place % len(_KERNELS)]
        cut, overrides = _CUTS[place % 3 + 2]
        found.append(Cell(f"{bug.name}/{cut}/{kernel}", 0, {**_ON_CPU, **environment}, overrides, bug.name))
    return found


def score_matrix(
    chosen: Sequence[Cell],
    recipe: Path,
    folder: Path,
    *,
    processes: int,
    on_row: Callable[[CellScore], None] = lambda _row: None,
) -> list[CellScore]:
    """Every cell beside the plain run of its seed, several at a time."""
    rows = []
    with ThreadPoolExecutor(processes) as pool:
        seeds = sorted({cell.seed for cell in chosen})
        list(pool.map(lambda seed: _process(Cell("plain", seed, _ON_CPU), None, seed, recipe, folder), seeds))
        numbers = range(_CELLS_FROM, _CELLS_FROM + len(chosen))
        for row in pool.map(lambda item: _score(item[1], item[0], recipe, folder), zip(numbers, chosen, strict=True)):
            on_row(row)
            rows.append(row)
    return rows


_CELLS_FROM = 1000
_CHILD = "import sys; from rldbg.trainer.zoo.matrix import run_cell; run_cell(sys.argv[1])"


def _score(cell: Cell, number: int, recipe: Path, folder: Path) -> CellScore:
    base = folder / "recordings" / str(cell.seed)
    verdict, stage, causes = _process(cell, base, number, recipe, folder)
    if cell.bug is None:
        return CellScore(cell.name, None, verdict, stage, causes, verdict in SILENT, bool(causes))
    bug = find_bug(cell.bug)
    named = bool(causes) and causes[0] in bug.causes
    right = verdict == "different" and stage == bug.stage
    return CellScore(cell.name, cell.bug, verdict, stage, causes, right, bool(causes) and not named)


def _process(
    cell: Cell, base: Path | None, number: int, recipe: Path, folder: Path
) -> tuple[str, str | None, tuple[str, ...]]:
    task = {
        "recipe": str(recipe),
        "folder": str(folder),
        "number": number,
        "base": None if base is None else str(base),
        "overrides": list(_overrides(cell, base)),
    }
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, json.dumps(task)],
        env={**Environment().everything(), **cell.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise IncompleteDataError(f"the run {cell.name} failed: {done.stderr.strip()[-400:]}", "try it by `zoo run`")
    verdict, stage, causes = json.loads(_answer(folder, number).read_text(encoding="utf-8"))
    return verdict, stage, tuple(causes)


def _answer(folder: Path, number: int) -> Path:
    return folder / f"verdict-{number}.json"


def _overrides(cell: Cell, base: Path | None) -> Iterator[str]:
    yield from (_STEPS, f"seed={cell.seed}", *cell.overrides)
    if cell.bug is not None or cell.variation is not None:
        yield f"++zoo.bug={cell.bug or cell.variation}"
    if cell.bug is None and base is not None:
        yield "++rollout_worker.type=mock"
        yield "++rollout_worker.need_llm_inference=false"
        yield f"++rollout_worker.trajectory_load_path={base}"


def run_cell(described: str) -> None:
    """What the process of a cell does; its answer is a file."""
    task = json.loads(described)
    folder = Path(task["folder"])
    made = ZooRunner(Path(task["recipe"]), folder).run(task["number"], task["overrides"])
    result = ("equal", None, ()) if task["base"] is None else compared(Path(task["base"]), made.recording)
    _answer(folder, task["number"]).write_text(json.dumps(result), encoding="utf-8")
