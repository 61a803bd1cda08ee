"""The zoo under real numerical noise: clean pairs and bugs, split differently and with different kernels."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import NamedTuple

from rldbg.trainer.zoo.bug import Bug
from rldbg.trainer.zoo.catalogue import BUGS

# Each of them has an effect on the machines that it is listed for only.
_KERNELS_OF = {
    "x86_64": (
        *((f"mkl-{name.lower()}", {"MKL_ENABLE_INSTRUCTIONS": name}) for name in ("SSE4_2", "AVX2", "AVX512")),
        *((f"aten-{name}", {"ATEN_CPU_CAPABILITY": name}) for name in ("default", "avx2", "avx512")),
    ),
    "aarch64": (
        ("aten-default", {"ATEN_CPU_CAPABILITY": "default"}),
        ("openblas-armv8", {"OPENBLAS_CORETYPE": "ARMV8"}),
    ),
}
_KERNELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("", {}),
    *_KERNELS_OF.get(platform.machine(), (("aten-default", {"ATEN_CPU_CAPABILITY": "default"}),)),
)
_CUTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ranks-1", ("policy.ranks=1",)),
    ("ranks-4", ("policy.ranks=4",)),
    *((f"micro-{size}", (f"policy.micro_batch_size={size}",)) for size in (1, 2, 3, 4, 6, 7, 8)),
    ("micro-8-ranks-1", ("policy.micro_batch_size=8", "policy.ranks=1")),
    ("threads-2", ("threads=2",)),
)
# What no recipe has a key for, injected: other ways to compute the same.
_VARIATIONS = (
    *("more-padding", "more-padding-on-the-right", "padded-on-the-left", "padded-on-the-right"),
    *("packed", "eager-attention"),
)
# How both sides of a pair compute. In float16 the recipe's gradients overflow: such runs are not clean.
_PRECISIONS = ("", "bfloat16-compute", "bfloat16-engine")
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}


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


def clean_cells(seeds: int, *, cuda: bool) -> list[Cell]:
    """Clean runs of every seed and precision under all cuts, kernels and variations."""
    found = []
    for seed in range(seeds):
        for number, precision in enumerate(_PRECISIONS):
            reference = Reference(seed, (), precision)
            for place, (cut, overrides) in enumerate(_CUTS):
                # Every cut has every kernel, in turn, over the seeds and precisions.
                kernel, environment = _KERNELS[(place + seed + number) % len(_KERNELS)]
                name = _name(f"seed-{seed}", precision, cut, kernel)
                found.append(Cell(name, reference, {**ON_CPU, **environment}, overrides))
            for variation in _VARIATIONS:
                name = _name(f"seed-{seed}", precision, variation)
                found.append(Cell(name, reference, ON_CPU, variation=variation))
        if cuda:
            found += [Cell(f"seed-{seed}/cuda-{cut}", Reference(seed), {}, overrides) for cut, overrides in _CUTS]
    return found


def bug_cells(seeds: int, count: int | None = None) -> list[Cell]:
    """That many bugs, all by default, each in a randomly chosen cell in which it changes something. The choice depends
    on `seeds` alone; a larger count begins with the same cells, and repeats bugs in other cells once all were used.
    """
    return list(islice(_drawn_cells(seeds), len(BUGS) if count is None else count))


def _drawn_cells(seeds: int) -> Iterator[Cell]:
    chance, seen = Random(seeds), set()
    while True:
        for bug in chance.sample(BUGS, len(BUGS)):
            cell = _of_bug(bug, seeds, chance)
            while cell.name in seen:
                cell = _of_bug(bug, seeds, chance)
            seen.add(cell.name)
            yield cell


def _of_bug(bug: Bug, seeds: int, chance: Random) -> Cell:
    kernel, environment = chance.choice(_KERNELS)
    cut, overrides = chance.choice([cut for cut in _CUTS if bug.needs.isdisjoint(_lacks(cut[1]))])
    precision = "" if "float32" in bug.needs else chance.choice(_PRECISIONS)
    seed = chance.randrange(seeds)
    name = _name(bug.name, f"seed-{seed}", precision, cut, kernel)
    return Cell(name, Reference(seed, bug.overrides, precision), {**ON_CPU, **environment}, overrides, bug.name)


def _name(*parts: str) -> str:
    return "/".join(filter(None, parts))


def _lacks(overrides: tuple[str, ...]) -> Iterator[str]:
    if "policy.ranks=1" in overrides:
        yield "ranks"
    if "policy.micro_batch_size=1" in overrides:
        yield "padding"
