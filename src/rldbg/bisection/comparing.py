"""Two captures compared module by module: the first one beyond noise, forward and backward."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from rldbg.bisection.module_outputs import Capture, ModuleOutput

# A difference counts if it is this many times what rounding does to the same output.
_MARGIN = 8.0
_SMALLEST = 1e-7
OutputPair = tuple[ModuleOutput, ModuleOutput, str]
FoundOutputs = dict[int, tuple[ModuleOutput, str]]
_SIMILAR = 0.6


@dataclass(frozen=True, slots=True)
class ModuleDifference:
    """One module: root mean square of the difference and of rounding, both relative to the output's own."""

    name: str
    other: str
    kind: str
    matched_by: str
    difference: float
    noise: float
    # Whether what the module is given differs too: then the difference arises before it, in the code around it.
    given: bool = False

    @property
    def beyond(self) -> bool:
        return _beyond(self.difference, self.noise)

    @property
    def place(self) -> str:
        """The module whose code or parameters make the difference."""
        return self.name.rpartition(".")[0] if self.given else self.name


@dataclass(frozen=True, slots=True)
class BisectReport:
    """`forward` and `backward` are the first modules that differ; `parameters` are the first one's own that differ."""

    a: str
    b: str
    modules: tuple[ModuleDifference, ...]
    gradients: tuple[ModuleDifference, ...]
    forward: ModuleDifference | None
    backward: ModuleDifference | None
    parameters: dict[str, float]
    operation: str | None = None
    unmatched: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return self.forward is None and self.backward is None

    def to_dict(self) -> dict[str, Any]:
        return {"verdict": "equal" if self.agrees else "different", **asdict(self)}


def bisect_captures(a: Capture, b: Capture, exact: Capture | None = None) -> BisectReport:
    """`exact` is A's pass in double precision: what it differs from A by is noise."""
    modules = _differences(a.forward, b.forward, exact.forward if exact else [])
    gradients = _differences(a.backward, b.backward, exact.backward if exact else [])
    forward = next((item for item in modules if item.beyond), None)
    backward = next((item for item in gradients if item.beyond), None)
    known = {item.name for item in modules}
    unmatched = tuple(item.name for item in a.forward if item.name not in known)
    parameters = {} if forward is None or forward.given else _changed_parameters(a, b, forward)
    return BisectReport(a.title, b.title, modules, gradients, forward, backward, parameters, None, unmatched)


def _differences(
    a: list[ModuleOutput], b: list[ModuleOutput], exact: list[ModuleOutput]
) -> tuple[ModuleDifference, ...]:
    exact_of = {id(one): other for one, other, _ in aligned(a, exact)}
    found = []
    for one, other, how in aligned(a, b):
        reference = exact_of.get(id(one), one)
        noise = _relative(one.values, reference.values)
        given = _beyond(_relative(one.inputs, other.inputs), _relative(one.inputs, reference.inputs))
        difference = _relative(one.values, other.values)
        found.append(ModuleDifference(one.name, other.name, one.kind, how, difference, noise, given))
    return tuple(found)


def _beyond(difference: float, noise: float) -> bool:
    return not difference <= _MARGIN * max(noise, _SMALLEST)


def _relative(a: np.ndarray | None, b: np.ndarray | None) -> float:
    """Root mean square of the difference, relative to A's own; 0 where one side does not have it."""
    if a is None or b is None:
        return 0.0
    if a.shape != b.shape:
        return float("inf")
    scale = float(np.sqrt(np.mean(a**2))) or 1.0
    return float(np.sqrt(np.mean((a - b) ** 2))) / scale


def _changed_parameters(a: Capture, b: Capture, first: ModuleDifference) -> dict[str, float]:
    """The largest difference of each parameter below the module; empty where all are equal."""
    found: dict[str, float] = {}
    for name, value in a.parameters.items():
        if not name.startswith(f"{first.name}."):
            continue
        other = b.parameters.get(first.other + name.removeprefix(first.name))
        if other is not None and value.shape == other.shape:
            gap = float((value.double() - other.to(value.device).double()).abs().max()) if value.numel() else 0.0
            found |= {name: gap} if gap else {}
    return found


def aligned(a: list[ModuleOutput], b: list[ModuleOutput]) -> list[OutputPair]:
    """Pairs of outputs in the order of A. A module that runs several times is paired run by run."""
    waiting: dict[str, list[ModuleOutput]] = {}
    for item in b:
        waiting.setdefault(item.name, []).append(item)
    pairs: FoundOutputs = {}
    for place, item in enumerate(a):
        if waiting.get(item.name):
            pairs[place] = (waiting[item.name].pop(0), "name")
    left = [item for items in waiting.values() for item in items]
    for place, item in enumerate(a):
        if place in pairs or not left:
            continue
        alike = [other for other in left if _size(other) == _size(item)]
        best = max(alike, key=lambda other: _likeness(item, other), default=None)
        if best is not None and _likeness(item, best) >= _SIMILAR:
            pairs[place] = (best, "similar name")
            left.remove(best)
    pairs |= _by_order([place for place in range(len(a)) if place not in pairs], a, left)
    return [(a[place], *pairs[place]) for place in sorted(pairs)]


def _by_order(places: list[int], a: list[ModuleOutput], left: list[ModuleOutput]) -> FoundOutputs:
    """What is left, where both sides have equally many outputs of a size."""
    found: FoundOutputs = {}
    for size in {_size(a[place]) for place in places}:
        mine = [place for place in places if _size(a[place]) == size]
        theirs = [item for item in left if _size(item) == size]
        if len(mine) == len(theirs):
            found |= {place: (item, "order") for place, item in zip(mine, theirs, strict=True)}
    return found


def _size(item: ModuleOutput) -> int:
    count = 1
    for extent in item.shape:
        count *= extent
    return count


def _likeness(a: ModuleOutput, b: ModuleOutput) -> float:
    """Names differ by prefixes and by what wraps a module; numbers of layers must not."""
    if [part for part in a.name.split(".") if part.isdecimal()] != [
        part for part in b.name.split(".") if part.isdecimal()
    ]:
        return 0.0
    return SequenceMatcher(None, a.name, b.name).ratio()
