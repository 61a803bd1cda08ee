"""Literal texts by which a signature is found in raw bytes before any regular expression runs.

Every line a signature matches contains one of its anchors. Where the words allow it there are two from different
places, so that a line broken by a terminal in the middle of one is still found by the other.
"""

from functools import lru_cache

from rldbg.doctor.search.syntax import Alternation, Literal, RegexGroup, RegexSequence, Repeat, parsed

SHORTEST = 8
"""The engines compare eight bytes at once; shorter anchors would also be found everywhere."""
_LONGEST = 20
_TWO_FROM = 24


class NoAnchorError(ValueError):
    """The expression has no literal text long enough to search for."""


def long_enough(anchor: str) -> str:
    """The anchor itself, or ValueError when it has too few bytes."""
    if len(anchor.encode()) < SHORTEST:
        raise ValueError(f"an anchor needs {SHORTEST} bytes")
    return anchor


@lru_cache(maxsize=4096)
def anchors_of(expression: str, *, both: bool = True) -> tuple[str, ...]:
    """The anchors of an expression, with the second pieces unless `both` is off; NoAnchorError when it has none."""
    found = _alternatives(parsed(expression), both=both)
    if not found:
        raise NoAnchorError(f"no literal text of {SHORTEST} characters in every match of {expression!r}")
    return tuple(dict.fromkeys(found))


def _alternatives(tree: RegexSequence, *, both: bool) -> list[str]:
    """Anchors one of which must occur in a match of this sequence; empty when that cannot be promised."""
    runs, branches = _runs_and_branches(tree)
    if runs:
        return _pieces(runs)[: 2 if both else 1]
    for choices in branches:
        per_choice = [_alternatives(choice, both=both) for choice in choices]
        if all(per_choice):
            return [anchor for anchors in per_choice for anchor in anchors]
    return []


def _runs_and_branches(tree: RegexSequence) -> tuple[list[str], list[tuple[RegexSequence, ...]]]:
    """Literal runs that every match contains, and the choices that every match passes through."""
    runs: list[str] = []
    branches: list[tuple[RegexSequence, ...]] = []
    current = ""
    for node in (*tree, None):  # None ends the last run
        if isinstance(node, Literal):
            current += node.character
            continue
        if len(current.strip().encode()) >= SHORTEST:
            runs.append(current)
        current = ""
        if isinstance(node, Alternation):
            branches.append(node.alternatives)
        elif isinstance(node, RegexGroup) or (isinstance(node, Repeat) and node.low > 0):
            inner_runs, inner_branches = _runs_and_branches(node.body)
            runs += inner_runs
            branches += inner_branches
    return runs, branches


def _pieces(runs: list[str]) -> list[str]:
    """One piece of the longest run, and a second one from elsewhere when there is room for it."""
    ordered = sorted(runs, key=len, reverse=True)
    longest = ordered[0]
    if len(longest) >= _TWO_FROM:
        half = min(_LONGEST, len(longest) // 2)
        return [longest[:half].strip() or longest[:half], longest[-half:].strip() or longest[-half:]]
    pieces = [longest.strip()[:_LONGEST]]
    if len(ordered) > 1:
        pieces.append(ordered[1].strip()[:_LONGEST])
    return pieces
