"""Which output of one side is which of the other: by name, then by order among equal shapes, then by similar names."""

from __future__ import annotations

from difflib import SequenceMatcher

from rldbg.bisection.module_outputs import ModuleOutput

Pair = tuple[ModuleOutput, ModuleOutput, str]
Found = dict[int, tuple[ModuleOutput, str]]
_SIMILAR = 0.6


def aligned(a: list[ModuleOutput], b: list[ModuleOutput]) -> list[Pair]:
    """In the order of A. A module that runs several times is paired run by run."""
    waiting: dict[str, list[ModuleOutput]] = {}
    for item in b:
        waiting.setdefault(item.name, []).append(item)
    pairs: Found = {}
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


def _by_order(places: list[int], a: list[ModuleOutput], left: list[ModuleOutput]) -> Found:
    """What is left, where both sides have equally many outputs of a size."""
    found: Found = {}
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
