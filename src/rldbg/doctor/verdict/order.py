"""Which of two failures came first, and whether one can have caused the other."""

from collections.abc import Iterable

from rldbg.doctor.knowledge.entries import Role
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.clock import Stamp
from rldbg.doctor.logs.evidence import Failure, Hit
from rldbg.doctor.logs.failures import is_wrapper
from rldbg.doctor.verdict.judgement import Sighting

_SKEW_S = 60.0
"""How far the clocks of two nodes may differ before the order of their lines is believed."""
_HEADER_LINES = 2


def explains(cause: Sighting, effect: Sighting, library: Library) -> bool:
    """Whether one failure can have caused another, by what is known of them and by the order of their lines.

    A root explains what does not clearly come before it. A symptom explains only what it is directly said to cause and
    clearly precedes; so do two failures that can each cause the other.
    """
    if effect.entry.id not in library.effects[cause.entry.id]:
        return False
    mutual = cause.entry.id in library.effects[effect.entry.id]
    if cause.entry.role is Role.SYMPTOM or mutual:
        direct = effect.entry.id in library.direct_effects[cause.entry.id]
        return direct and effect.entry.role is not Role.ROOT and precedes(cause.first, effect.first)
    return not _clearly_after(cause.first.place.stamp, effect.first.place.stamp)


def _clearly_after(one: Stamp | None, other: Stamp | None) -> bool:
    return bool(one and other and one.comparable(other) and one.seconds > other.seconds + _SKEW_S)


def precedes(one: Hit, other: Hit) -> bool:
    """Whether a line came before another: by the clock, or in the same log by its place."""
    first, second = one.place.stamp, other.since
    if first and second and first.comparable(second) and abs(first.seconds - second.seconds) > 1.0:
        return first.seconds < second.seconds
    return one.place.file == other.place.file and one.place.offset < other.place.offset


def by_time(found: Iterable[Sighting]) -> list[Sighting]:
    listed = list(found)
    stamps = [s.first.since for s in listed]
    if stamps and all(stamp is not None and stamps[0] is not None and stamp.comparable(stamps[0]) for stamp in stamps):
        return sorted(listed, key=lambda s: s.first.since.seconds if s.first.since else 0.0)
    return sorted(listed, key=lambda s: s.first.place.order)


def announces(symptom: Hit, failure: Failure) -> bool:
    """Whether a line says what the traceback right under it shows."""
    below = failure.place.line - symptom.place.line
    return symptom.place.file == failure.place.file and 0 <= below <= _HEADER_LINES and bool(failure.frames)


def came_before(failure: Failure | None, cause: Sighting) -> bool:
    """Whether an unknown failure came clearly before a failure that may be only fallout."""
    if failure is None or is_wrapper(failure):
        return False
    one, other = failure.place.stamp, cause.first.since
    if one and other and one.comparable(other):
        return one.seconds < other.seconds - 1.0
    same_file = failure.place.file == cause.first.place.file
    return same_file and failure.place.offset < cause.first.place.offset
