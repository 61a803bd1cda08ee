"""Exceptions without an entry of their own, classified by their type and by where they were raised."""

import re
from collections.abc import Iterable, Sequence

from rldbg.doctor.knowledge.entries import ExceptionFamily, KnownFailure
from rldbg.doctor.logs.cleaning import without_environment
from rldbg.doctor.logs.evidence import Failure
from rldbg.doctor.logs.frames import is_of_program, raising_frames
from rldbg.doctor.search.expressions import Expression

_IN = " in "
"""Between the file and the function of a frame."""
_BARE = re.compile(r"[\w.]+(?:: assert .*)?$")
"""An exception without words of its own: its type, or what it asserted."""


def family_of(failure: Failure, entries: Iterable[KnownFailure]) -> KnownFailure | None:
    """The first entry whose family an exception belongs to; where it was raised says more than its message.

    In a framework's code the kind of the exception is the name: what it says is proved, whose fault it is is not.
    """
    found = _families_of(failure, entries)
    if failure.ends_open:  # nobody knows whose code raised it
        found = [(entry, family) for entry, family in found if not family.asked_last]
    if not any(family.yields for _entry, family in found):
        found = [(entry, family) for entry, family in found if not family.beside_only]
    return next((entry for entry, family in found if not family.yields), found[0][0] if found else None)


def kind_of(failure: Failure, entries: Iterable[KnownFailure]) -> KnownFailure | None:
    """The entry that an exception's words alone stand for, wherever it was raised."""
    return next((entry for entry, family in _families_of(failure, entries) if family.raised_in is None), None)


def passed_through(failure: Failure, entries: Iterable[KnownFailure]) -> KnownFailure | None:
    """The entry in whose place an exception was not raised, but which called what raised it: a candidate."""
    anywhere = [
        entry.model_copy(update={"family": entry.family.model_copy(update={"frames": len(failure.frames)})})
        for entry in entries
        if entry.family is not None and entry.family.raised_in is not None and failure.frames
    ]
    return next((entry for entry, family in _families_of(failure, anywhere) if not family.asked_last), None)


def _fits(family: ExceptionFamily, frames: Sequence[str]) -> bool:
    """Whether the program was doing what the family is about."""

    def is_within(doing: str) -> bool:
        return any(Expression(doing).search(frame) for frame in frames)

    if family.within is not None and not is_within(family.within):
        return False
    return family.not_within is None or not is_within(family.not_within)


def _is_there(family: ExceptionFamily, place: Expression, frame: str, failure: Failure) -> bool:
    """Whether a frame is where exceptions of a family are raised.

    The name of a file or folder of a program says what most of its functions are about, not what this one does: it is
    not enough for an exception that says nothing, nor for a function that does other work.
    """
    found = place.search(frame)
    if found is None:
        return False
    is_narrow = family.frames is not None and family.other_work is None
    function = frame.rpartition(_IN)[2]
    if is_narrow or not is_of_program(frame) or _IN in found[0] or place.search(_IN + function):
        return True
    is_other = family.other_work is not None and bool(Expression(family.other_work).search(function))
    return not (is_other or _BARE.match(failure.headline))


def _families_of(failure: Failure, entries: Iterable[KnownFailure]) -> list[tuple[KnownFailure, ExceptionFamily]]:
    """All families of an exception: those that only say whose code failed last, and the nearer a family's place is to
    where it was raised, the earlier; of one place first those that are only for so many frames."""
    frames = [without_environment(frame) for frame in reversed(failure.frames)]
    raising = len(raising_frames(failure.frames))
    found: list[tuple[tuple[bool, bool, int, bool], KnownFailure, ExceptionFamily]] = []
    for entry in entries:
        family = entry.family
        if family is None or not Expression(family.exception).search(failure.headline) or not _fits(family, frames):
            continue
        if family.raised_in is None:
            found.append(((family.asked_last, True, 0, True), entry, family))
            continue
        place = Expression(family.raised_in)
        depth = next(
            (
                depth
                for depth, frame in enumerate(frames[: family.frames or raising])
                if _is_there(family, place, frame, failure)
            ),
            None,
        )
        if depth is not None:
            is_narrow = family.frames is not None and not family.asked_last
            found.append(((family.asked_last, False, depth, not is_narrow), entry, family))
    return [(entry, family) for _order, entry, family in sorted(found, key=lambda each: each[0])]
