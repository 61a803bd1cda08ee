"""The exception without an entry with which the failure begins: where the program met it, not where it is repeated."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rldbg.doctor.knowledge.entries import Role
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.evidence import PROGRAM_ENDED, Failure, Hit, LogEvidence
from rldbg.doctor.logs.failures import is_wrapper, tells_of_child
from rldbg.doctor.logs.frames import asks, is_go_between
from rldbg.doctor.logs.survival import has_survived, is_closing, is_uncaught, reaches
from rldbg.doctor.logs.tracebacks import HEADLESS
from rldbg.doctor.verdict.bystanders import FROM_OUTSIDE, says_itself
from rldbg.doctor.verdict.echoes import original_of
from rldbg.doctor.verdict.judgement import Sighting
from rldbg.doctor.verdict.order import announces

_OF_PEERS = ("DistBackendError", "DistStoreError", "ConnectionResetError", "BrokenPipeError", "EOFError", "Empty")
"""What processes raise when another one that they talk to, or wait for, is gone."""
_MESSAGE_LINES = 8
_CARRIED_LETTERS = 20
_CHAIN_LINES = 4
"""Between two tracebacks of a chain: the sentence that says so, and blank lines."""


def first_unknown(evidence: LogEvidence, library: Library, seen: Mapping[str, Sighting]) -> Failure | None:
    """The first exception without an entry that was not survived; wrappers and chained ones only if nothing else is.

    An entry whose words it has but whose context is missing does not explain it.
    """
    warned = {name for name in seen if library.entries[name].severity == "warning"}
    counted = [hit for name, sighting in seen.items() if name not in warned for hit in sighting.hits]
    known = [f for f in evidence.failures if any(name in seen and name not in warned for name in f.known_as)]
    open_ones = [
        failure
        for failure in evidence.failures
        if failure not in known
        and not _follows_from(failure, known)
        and not any((f.place.file, f.place.offset) == (failure.place.file, failure.quotes) for f in evidence.failures)
        and (evidence.read_only_aside or not failure.place.is_aside)
        and not has_survived(evidence, failure)
        and not any(_carries(failure, other) for other in known)
        and not any(_belongs_to(hit, failure, library) for hit in counted)
        and not any(library.entries[hit.entry].role is Role.BENIGN and announces(hit, failure) for hit in counted)
        and not (is_closing(failure) and _fails_before(failure, evidence, counted))
    ]
    if not open_ones:
        return None
    stamps = [failure.place.stamp for failure in open_ones]
    timed = all(stamp is not None and stamps[0] is not None and stamp.comparable(stamps[0]) for stamp in stamps)

    says = any(is_uncaught(failure) and says_itself(failure) for failure in open_ones)

    def order(failure: Failure) -> tuple[bool, bool, bool, bool, bool, bool, bool, bool, float, tuple[str, int]]:
        stamp = failure.place.stamp
        return (
            failure.kind == PROGRAM_ENDED,
            is_wrapper(failure) or tells_of_child(failure) or any(_carries(failure, other) for other in open_ones),
            failure.kind == HEADLESS,
            is_of_peer(failure),
            says and not failure.frames,
            failure.warned,
            has_survived(evidence, replace(failure, last=None)),
            failure.chained,
            stamp.seconds if timed and stamp else 0.0,
            failure.place.order,
        )

    first = min(open_ones, key=order)
    if not first.frames and (original := original_of(first, open_ones)) and original.headline == first.headline:
        return original
    first = _as_the_program_met_it(first, evidence.failures)
    return replace(first, frames=first.frames or _frames_right_below(first, open_ones))


def _as_the_program_met_it(failure: Failure, failures: Sequence[Failure]) -> Failure:
    """The exception that was raised from another one, where only its frames have the code that asked for something:
    those of the inner one are all of libraries, and say the reason."""
    below = (other for other in failures if other.chained and _follows_from(other, [failure]))
    outer = next((other for other in below if other.place.speaker.pid == failure.place.speaker.pid), None)
    if outer is None or not failure.frames or any(map(asks, failure.frames)) or not any(map(asks, outer.frames)):
        return failure
    return _as_the_program_met_it(outer, failures)


def _fails_before(failure: Failure, evidence: LogEvidence, counted: Sequence[Hit]) -> bool:
    """Whether something else had failed in the log before an exception: if it was raised in closing, it is not where
    the failure begins."""
    others = [other.place for other in evidence.failures if other is not failure]
    return any(
        place.file == failure.place.file and place.offset < failure.place.offset
        for place in (*others, *(hit.place for hit in counted))
    )


def _frames_right_below(failure: Failure, failures: Sequence[Failure]) -> tuple[str, ...]:
    """For an exception without a traceback, the frames of the next process whose own exception was cut off; if it is
    known which process raised it, of one that is called so. Where that one only waited for others, it did not raise
    it."""
    cut = (other for other in failures if other.kind == HEADLESS and other.place.file == failure.place.file)
    alike = (other for other in cut if failure.place.speaker.name in ("", other.place.speaker.name))
    near = (f.frames for f in alike if 0 < f.place.line - failure.place.line <= _CHAIN_LINES)
    return next((frames for frames in near if not (frames and is_go_between(frames[-1]))), ())


def _follows_from(failure: Failure, known: Sequence[Failure]) -> bool:
    """Whether an exception was raised while handling a known one, whose traceback is right above it."""
    above = [f for f in known if f.place.file == failure.place.file and f.place.line < failure.place.line]
    return failure.chained and any(failure.place.line - (f.place.line + f.lines) <= _CHAIN_LINES for f in above)


def _carries(failure: Failure, other: Failure) -> bool:
    """Whether an exception repeats the message of another one behind words of its own: that one is what happened."""
    is_said = len(other.message) >= _CARRIED_LETTERS and other.kind != failure.kind
    return is_said and failure.message != other.message and failure.message.endswith(other.message)


def _belongs_to(hit: Hit, failure: Failure, library: Library) -> bool:
    """Whether a known line is inside a failure, or right below it, as the second line of its message is.

    A symptom in the line that begins a traceback announces the exception at its end and does not explain it.
    """
    below = hit.place.line - failure.place.line
    entry = library.entries[hit.entry]
    if below == 0 and failure.frames and not entry.can_be_cause:
        return False
    may_be_message = entry.can_be_cause and entry.category not in FROM_OUTSIDE
    return reaches(failure, hit, failure.lines + (_MESSAGE_LINES if may_be_message else 0))


def is_of_peer(failure: Failure) -> bool:
    return failure.kind.rpartition(".")[2] in _OF_PEERS
