"""By which condition, loop, return or exception one rank has passed by the line where another one waits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_Step = Mapping[str, Any]
# With more than these it is not clear which one it was.
_MOST_WAYS = 3
# How the end of a loop is told, by its condition or because its rounds are over.
_NOT_HELD = ("did not hold",)
_LOOP_IS_OVER = ("did not hold any more", "ended after fewer rounds")


def passed_by(waiting: Sequence[_Step], other: Sequence[_Step], *, waits: bool) -> str:
    """How the rank with the route `other` has passed by the current line of `waiting`; empty where the source allows
    none or many ways, or the rank has not come so far, or is in another branch. `waits`: it is in a collective too, not
    on its way."""
    parts = _parting(waiting, other)
    if parts is None or not _is_same_function(waiting[parts], other[parts]) or other_branch_of(waiting, other):
        return ""
    ahead = _is_ahead(other, waiting, parts)
    ways = list(_ways(waiting, other, parts))
    if ahead is None and not (waits and _is_certain(other, waiting, parts)):
        return ""
    if ahead is False or not ways or len(ways) > _MOST_WAYS:
        return ""
    return ", or ".join(dict.fromkeys(ways))


def other_branch_of(waiting: Sequence[_Step], other: Sequence[_Step]) -> str:
    """The condition of which two are in different branches: who is elsewhere may come to the same call there."""
    parts = _parting(waiting, other)
    step, their = (waiting[parts], other[parts]) if parts is not None else ({}, {})
    for escape in step.get("escapes") or () if step and _is_same_function(step, their) else ():
        first, last = escape.get("aside") or (0, -1)
        if first <= their["line"] <= last:
            return _words({**escape, "word": ""}, step, their).rstrip()
    return ""


def ways_past(waiting: Sequence[_Step]) -> str:
    """How a rank may have come to its end without the current line of `waiting`; empty where there are many ways."""
    own = [step for step in waiting if step["function"] != "<module>"]
    if any(step["escapes"] is None for step in own):
        return ""
    ways = dict.fromkeys(_words(escape, step, {}) for step in own for escape in step["escapes"])
    return ", or ".join(ways) if len(ways) <= _MOST_WAYS else ""


def has_left(waiting: Sequence[_Step], other: Sequence[_Step]) -> bool:
    """Whether the rank with the route `other` has come through the last line of `waiting`: it is further down in the
    same function, in the same round of the loops there, and nothing leads past that line."""
    step = waiting[-1] if waiting else {}
    their = next((each for each in reversed(other) if step and _is_same_function(step, each)), None)
    if their is None or step["escapes"] is None or their["line"] <= step["line"]:
        return False
    rounds = list(_common_rounds(step, their))
    return all(own is not None and own == number for own, number in rounds) and not list(_ways([step], [their], 0))


def rounds_apart(route: Sequence[_Step], other: Sequence[_Step]) -> int | None:
    """Of two at the same lines, in which order their rounds of the same loops are: 1 where the other is ahead, 0 where
    they are in the same one; None where they are at different lines or their rounds are not known."""
    if not route or len(route) != len(other) or any(map(_differ, route, other)):
        return None
    for own, their in (pair for steps in zip(route, other, strict=True) for pair in _common_rounds(*steps)):
        if own is None or their is None:
            return None
        if own != their:
            return 1 if their > own else -1
    return 0


def left_behind(route: Sequence[_Step], other: Sequence[_Step]) -> tuple[str, int, int] | None:
    """The first loop that two are in different rounds of, and the rounds of both; None where there is none, or where
    the rounds are not known."""
    parts = _parting(route, other)
    for step, their in zip(route[: parts + 1] if parts is not None else route, other, strict=False):
        if not _is_same_function(step, their):
            return None
        numbers = {line: number for line, _, number in their["rounds"]}
        for line, _, number in (each for each in step["rounds"] if each[0] in numbers):
            if number is None or numbers[line] is None:
                return None
            if number != numbers[line]:
                return f"{str(step['file']).rpartition('/')[2]}:{line}", number, numbers[line]
    return None


def where_apart(route: Sequence[_Step], other: Sequence[_Step]) -> tuple[_Step, _Step] | None:
    """The first lines of two routes that differ."""
    parts = _parting(route, other)
    return (route[parts], other[parts]) if parts is not None else None


def _parting(route: Sequence[_Step], other: Sequence[_Step]) -> int | None:
    return next((n for n, pair in enumerate(zip(route, other, strict=False)) if _differ(*pair)), None)


def _is_same_function(step: _Step, other: _Step) -> bool:
    return (step["file"], step["function"]) == (other["file"], other["function"])


def _differ(step: _Step, other: _Step) -> bool:
    return any(step[name] != other[name] for name in ("file", "function", "line"))


def _is_ahead(other: Sequence[_Step], waiting: Sequence[_Step], parts: int) -> bool | None:
    """Whether one is further than the other: by the rounds of the loops that both are in, then by the line. None where
    a round is not known."""
    rounds = [pair for n in range(parts + 1) for pair in _common_rounds(other[n], waiting[n])]
    for own, their in rounds:
        if own is None or their is None:
            return None
        if own != their:
            return bool(own > their)
    return bool(other[parts]["line"] > waiting[parts]["line"])


def _common_rounds(step: _Step, other: _Step) -> Iterator[tuple[int | None, int | None]]:
    numbers = {line: number for line, _, number in other["rounds"]}
    yield from ((number, numbers[line]) for line, _, number in step["rounds"] if line in numbers)


def _is_certain(other: Sequence[_Step], waiting: Sequence[_Step], parts: int) -> bool:
    """Whether, of two in unknown rounds of a loop, only one can have passed by the line of the other."""
    return other[parts]["escapes"] is not None and not list(_ways(other, waiting, parts))


def _ways(waiting: Sequence[_Step], other: Sequence[_Step], parts: int) -> Iterator[str]:
    """Of few, those that the values of now speak for, else those that they do not speak against, if there are any."""
    found = list(_escapes(waiting, other, parts))
    likely = [each for each in found if not _is_refuted(each[0], each[2])] if len(found) <= _MOST_WAYS else []
    seen = [each for each in likely if _is_seen(each[0], each[2])]
    yield from (_words(escape, step, their) if escape else "" for escape, step, their in seen or likely or found)


def _is_seen(escape: _Step, other: _Step) -> bool:
    """Whether a condition that is said not to have held does not hold now."""
    return escape.get("word") in _NOT_HELD and escape["line"] in (other.get("untrue") or ())


def _is_refuted(escape: _Step, other: _Step) -> bool:
    """Whether a loop that is said to be over has rounds left, a condition that is said not to have held does hold, or a
    `break` that was taken depends on what does not hold."""
    over = escape.get("word") in (*_LOOP_IS_OVER, *_NOT_HELD) and escape["line"] in (other.get("hold") or ())
    return over or (escape.get("kind") == "break" and escape["line"] in (other.get("fail") or ()))


def _escapes(waiting: Sequence[_Step], other: Sequence[_Step], parts: int) -> Iterator[tuple[_Step, _Step, _Step]]:
    """Each with its step, and with the other rank's step in the same function; empty where any way is possible."""
    where, same_round = int(other[parts]["line"]), _is_same_round(waiting[parts], other[parts])
    for number, step in enumerate(waiting[parts:]):
        if step["escapes"] is None:
            yield from (({}, {}, {}),) * (_MOST_WAYS + 1)
        for escape in step["escapes"] or ():
            inside = number == 0 and escape["from"] <= where <= escape["to"]
            # Who is in the same function has not returned from it.
            returned = number == 0 and escape["kind"] == "return"
            if not returned and (not inside or (escape["kind"] == "continue" and not same_round)):
                yield escape, step, other[parts] if number == 0 else {}


def _is_same_round(step: _Step, other: _Step) -> bool:
    rounds = list(_common_rounds(step, other))
    return bool(rounds) and all(own is not None and own == their for own, their in rounds)


def _words(escape: _Step, step: _Step, other: _Step) -> str:
    place = f"{str(step['file']).rpartition('/')[2]}:{escape['line']}"
    values = (other.get("tested") or {}).get(str(escape["line"]), "")
    values = f"; now {values}" if values and escape["kind"] in ("test", "loop") else ""
    if escape["kind"] in ("test", "loop"):
        return f"{escape['what']} ({place}{values}) {escape['word']}"
    return f"{escape['what']} at {place}{escape['word']}"
