"""From all evidence to one verdict: which failure is the root cause, which are consequences, and when it is unknown.

The rules, in order. A hit whose context is missing does not count. A warning or a harmless look-alike is a note. A
failure that training visibly survived is a note. A failure that another one present can have caused, and that did not
come before it, is fallout. A failure that is no part of the exception that ended its process, which says itself what
was wrong, is a bystander. Symptoms are never the answer. What is left is the root cause; if nothing is left, and
something failed, the cause is not in the logs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rldbg.doctor.bystanders import bystanders_of, late_ones, says_itself, stands_alone
from rldbg.doctor.clock import Stamp
from rldbg.doctor.echoes import is_only_repeated, original_of
from rldbg.doctor.entries import Role
from rldbg.doctor.evidence import Failure, Hit, LogEvidence
from rldbg.doctor.failures import HEADLESS, family_of, is_wrapper, kind_of
from rldbg.doctor.judgement import Judgement, Sighting
from rldbg.doctor.library import Library
from rldbg.doctor.specifics import asks
from rldbg.doctor.standing import is_information, is_warning
from rldbg.doctor.survival import (
    came_after_end,
    has_survived,
    have_survived,
    holds,
    is_closing,
    is_uncaught,
    reaches,
    went_on_after,
)

_SKEW_S = 60.0
"""How far the clocks of two nodes may differ before the order of their lines is believed."""
_RIGHT_BEFORE_S = 90.0
_RIGHT_BEFORE_LINES = 15
_MESSAGE_LINES = 8
_HEADER_LINES = 2
_OF_PEERS = ("DistBackendError", "DistStoreError", "ConnectionResetError", "BrokenPipeError", "EOFError", "Empty")
"""What processes raise when another one that they talk to, or wait for, is gone."""
_THREAD = (" in _bootstrap", " in _bootstrap_inner")
"""The first frame of what ended a thread or a child process: nothing caught it."""
_CHAIN_LINES = 4
"""Between two tracebacks of a chain: the sentence that says so, and blank lines."""


def judge(evidence: LogEvidence, library: Library, *, ended_well: bool = False) -> Judgement:
    """The root causes among everything seen; how a log ends says nothing where the program is known to have ended
    well."""
    seen = sightings(evidence, library)
    aside = [] if evidence.read_only_aside else _only_aside(seen, library)
    notes = [s for s in seen.values() if s.survived or s in aside or _is_harmless(s, evidence)]
    live = [s for s in seen.values() if s not in notes]
    warnings = [s for s in live if s.entry.severity == "warning"]
    errors = [s for s in live if s.entry.severity == "error"]
    late = late_ones(errors, evidence)
    errors = [s for s in errors if s not in late]
    candidates = [s for s in errors if s.entry.can_be_cause]
    unknown = _first_unknown(evidence, library, seen)
    if unknown is not None and (_only_reports(unknown, errors) if errors else unknown.warned):
        unknown = None
    if unknown is None and not errors and not ended_well:
        unknown = _ending(evidence, notes)
    causes = _causes(candidates, errors, library)
    bystanders = bystanders_of(causes, evidence, library)
    causes = [s for s in causes if s not in bystanders]
    if _is_doubtful(causes, errors, unknown, library) or _was_handled(causes, unknown, evidence):
        causes = []
    symptoms = [s for s in errors if s not in causes and s not in bystanders]
    if not causes:
        warned = [] if unknown is not None and says_itself(unknown) else _warned_causes(warnings, symptoms, library)
        causes = warned or _family(unknown, evidence, symptoms, library)
    notes += [s for s in warnings if s not in causes]
    return Judgement(
        causes=tuple(_ordered(causes, symptoms, evidence, library)),
        fallout=tuple(_nearest_first([s for s in symptoms if s not in causes], library)),
        notes=tuple(notes),
        bystanders=(*late, *bystanders),
        first_error=unknown,
        failed=bool(errors or causes or unknown),
    )


def _only_reports(unknown: Failure, errors: Sequence[Sighting]) -> bool:
    """Whether an unknown failure says no more than that a process ended, beside known ones: it is a wrapper, or no
    exception but the report of a crash that comes after one of them."""
    if unknown.is_crash:
        hit = Hit("", unknown.place, unknown.headline, unknown.headline)
        return any(_precedes(error.first, hit) for error in errors)
    return is_wrapper(unknown) or unknown.kind == HEADLESS


def _ending(evidence: LogEvidence, notes: Sequence[Sighting]) -> Failure | None:
    """The first line with which a log says that its program failed, unless the line is known to be harmless, or all
    steps were done before it."""
    known = {(hit.place.file, hit.place.line) for sighting in notes for hit in sighting.hits}
    return next(
        (
            ending
            for ending in evidence.endings
            if (ending.place.file, ending.place.line) not in known
            and not came_after_end(evidence, ending.place)
            and (evidence.read_only_aside or not ending.place.is_aside)
            and not has_survived(evidence, ending)
        ),
        None,
    )


def _is_harmless(sighting: Sighting, evidence: LogEvidence) -> bool:
    """A look-alike; but one that is harmless only as long as things go on is not, when a log ends with it and no log
    says that all steps are done."""
    if sighting.entry.role is not Role.BENIGN:
        return False
    last = max(sighting.hits, key=lambda hit: hit.place.order).place
    ends = any(end.file == last.file and last.line >= end.closing_line for end in evidence.ends)
    return not (sighting.entry.look and ends and not evidence.done)


def _is_doubtful(
    causes: Sequence[Sighting], errors: Sequence[Sighting], unknown: Failure | None, library: Library
) -> bool:
    """A possible consequence is doubtful after an unknown failure, or beside a specific failure it does not explain."""
    if not causes or any(s.entry.role is not Role.EITHER for s in causes):
        return False
    if _came_before(unknown, causes[0]):
        return True
    known = {effect for s in causes for effect in library.direct_effects[s.entry.id]}
    open_ones = [s for s in errors if s not in causes and s.entry.id not in known]
    return any(library.is_telling(s.entry.id) for s in open_ones)


def _was_handled(causes: Sequence[Sighting], unknown: Failure | None, evidence: LogEvidence) -> bool:
    """Whether a possible consequence was caught and printed, and the program died later of an exception of its own.

    What ends a program is printed from its first line on; what is caught, from the function that caught it on.
    """
    if unknown is None or not causes or any(s.entry.role is not Role.EITHER for s in causes):
        return False
    hit = causes[0].first
    holder = next((failure for failure in evidence.failures if holds(failure, hit)), None)
    return (
        holder is not None
        and is_uncaught(unknown)
        and not _is_of_peer(unknown)
        and bool(holder.frames)
        and not (is_uncaught(holder) or holder.frames[0].endswith(_THREAD))
        and not unknown.chained
        and unknown.place.speaker.pid == hit.place.speaker.pid
        and unknown.place.file == hit.place.file
        and unknown.place.offset > hit.place.offset
    )


def _only_aside(seen: Mapping[str, Sighting], library: Library) -> list[Sighting]:
    """What was seen only in logs of Ray's side processes and explains nothing seen elsewhere."""
    aside = [s for s in seen.values() if all(hit.place.is_aside for hit in s.hits)]
    elsewhere = [s for s in seen.values() if s not in aside]
    return [s for s in aside if not any(_is_direct(s, other, library) for other in elsewhere)]


def _is_direct(cause: Sighting, effect: Sighting, library: Library) -> bool:
    """A side process harms only what depends on it directly, so indirect effects do not count."""
    return effect.entry.id in library.direct_effects[cause.entry.id] and explains(cause, effect, library)


def sightings(evidence: LogEvidence, library: Library) -> Mapping[str, Sighting]:
    """The entries whose hits count in their context."""
    by_entry: dict[str, list[Hit]] = {}
    for hit in evidence.hits:
        by_entry.setdefault(hit.entry, []).append(hit)
    found: dict[str, Sighting] = {}
    for name, hits in by_entry.items():
        entry = library.entries[name]
        if entry.needs and not evidence.clues.intersection(entry.needs):
            continue
        if evidence.clues.intersection(entry.excluded_by):
            continue
        counted = [
            hit
            for hit in hits
            if (not hit.last_before or _right_before(hit, by_entry.get(hit.last_before, [])))
            and not is_only_repeated(hit, hits, evidence.failures)
        ]
        if counted:
            counted = _earliest_first(counted)
            survived = have_survived(evidence, counted)
            found[name] = Sighting(entry, tuple(counted), survived)
    return found


def _right_before(hit: Hit, troubles: Sequence[Hit]) -> bool:
    """Whether some trouble began just after a line, by the clock or, without one, by the lines between."""
    for trouble in troubles:
        begin, stamp = trouble.since, hit.place.stamp
        if begin and stamp and begin.comparable(stamp) and trouble.timeout_s is not None:
            latest = max(_RIGHT_BEFORE_S, 0.1 * trouble.timeout_s)
            follows = -_RIGHT_BEFORE_S <= begin.seconds - stamp.seconds <= latest
        else:
            same_file = trouble.place.file == hit.place.file
            follows = same_file and 0 < trouble.place.line - hit.place.line <= _RIGHT_BEFORE_LINES
        if follows:
            return True
    return False


def _earliest_first(hits: list[Hit]) -> list[Hit]:
    stamps = [hit.place.stamp for hit in hits]
    if all(stamp is not None and stamp.comparable(stamps[0]) for stamp in stamps if stamps[0] is not None):
        return sorted(hits, key=lambda hit: (hit.place.stamp.seconds if hit.place.stamp else 0.0, hit.place.order))
    return sorted(hits, key=lambda hit: hit.place.order)


def _causes(candidates: Sequence[Sighting], seen: Sequence[Sighting], library: Library) -> list[Sighting]:
    """Candidates that nothing seen explains; roots before those that may be either."""
    alive = [s for s in candidates if not any(explains(o, s, library) for o in seen if o is not s)]
    roots = [s for s in alive if s.entry.role is Role.ROOT] or alive
    return [s for s in roots if not _is_only_told(s)] or roots


def _is_only_told(sighting: Sighting) -> bool:
    """Whether all its lines are such as their logger calls an information or a warning, as of a wait that can have
    ended: beside an error it is not the cause."""
    return all(is_information(hit.text) or is_warning(hit.text) for hit in sighting.hits)


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
        return direct and effect.entry.role is not Role.ROOT and _precedes(cause.first, effect.first)
    return not _clearly_after(cause.first.place.stamp, effect.first.place.stamp)


def _clearly_after(one: Stamp | None, other: Stamp | None) -> bool:
    return bool(one and other and one.comparable(other) and one.seconds > other.seconds + _SKEW_S)


def _precedes(one: Hit, other: Hit) -> bool:
    """Whether a line came before another: by the clock, or in the same log by its place."""
    first, second = one.place.stamp, other.since
    if first and second and first.comparable(second) and abs(first.seconds - second.seconds) > 1.0:
        return first.seconds < second.seconds
    return one.place.file == other.place.file and one.place.offset < other.place.offset


def _warned_causes(warnings: Sequence[Sighting], symptoms: Sequence[Sighting], library: Library) -> list[Sighting]:
    """A warning is the answer when it explains a symptom; alone it is a note."""
    return [s for s in warnings if any(explains(s, symptom, library) for symptom in symptoms)]


def _family(
    unknown: Failure | None, evidence: LogEvidence, symptoms: Sequence[Sighting], library: Library
) -> list[Sighting]:
    """The family of an exception without an entry, unless something went wrong before it."""
    if unknown is None or is_wrapper(unknown) or _is_of_peer(unknown):
        return []
    entry = family_of(unknown, library.entries.values())
    if entry is None or entry.family is None or (entry.family.asked_last and not _ended_the_run(unknown, evidence)):
        return []
    hit = Hit(entry.id, unknown.place, unknown.headline, unknown.headline)
    earlier = [s for s in symptoms if _precedes(s.first, hit) and not _announces(s.first, unknown)]
    kind = kind_of(unknown, library.entries.values()) if entry.family.asked_last else None
    found = Sighting(entry, (hit,), survived=False, by_family=True, kind=None if kind is entry else kind)
    return [] if earlier else [found]


def _is_of_peer(failure: Failure) -> bool:
    return failure.kind.rpartition(".")[2] in _OF_PEERS


def _ended_the_run(failure: Failure, evidence: LogEvidence) -> bool:
    """Whether an exception is what its process died of: it was not raised while things were being closed, no step came
    after it, and the process raised nothing else later. What it went on after, it had handled."""
    if is_closing(failure) or went_on_after(evidence, failure.last or failure.place):
        return False
    last = failure.last or failure.place
    return not any(
        other.place.file == last.file
        and other.place.offset > last.offset
        and other.place.speaker.pid == last.speaker.pid
        and other.kind != failure.kind
        and other.frames
        and not (other.chained or is_wrapper(other) or other.kind == HEADLESS)
        for other in evidence.failures
    )


def _announces(symptom: Hit, failure: Failure) -> bool:
    """Whether a line says what the traceback right under it shows."""
    below = failure.place.line - symptom.place.line
    return symptom.place.file == failure.place.file and 0 <= below <= _HEADER_LINES and bool(failure.frames)


def _ordered(
    causes: Sequence[Sighting], symptoms: Sequence[Sighting], evidence: LogEvidence, library: Library
) -> list[Sighting]:
    """Exceptions without a traceback last; the cause that explains what was seen first; among equals the earliest."""

    def order(cause: Sighting) -> tuple[bool, bool]:
        explains_none = bool(symptoms) and not any(explains(cause, other, library) for other in symptoms)
        return stands_alone(cause, evidence), explains_none

    return sorted(_by_time(causes), key=order)


def _nearest_first(symptoms: Sequence[Sighting], library: Library) -> list[Sighting]:
    """Symptoms that another one brings about come after those that none does; among equals the earliest first."""

    def follows(symptom: Sighting) -> bool:
        name = symptom.entry.id
        others = (other.entry.id for other in symptoms if other is not symptom)
        return any(name in library.effects[other] and other not in library.effects[name] for other in others)

    return sorted(_by_time(symptoms), key=follows)


def _by_time(found: Iterable[Sighting]) -> list[Sighting]:
    listed = list(found)
    stamps = [s.first.since for s in listed]
    if stamps and all(stamp is not None and stamps[0] is not None and stamp.comparable(stamps[0]) for stamp in stamps):
        return sorted(listed, key=lambda s: s.first.since.seconds if s.first.since else 0.0)
    return sorted(listed, key=lambda s: s.first.place.order)


def _first_unknown(evidence: LogEvidence, library: Library, seen: Mapping[str, Sighting]) -> Failure | None:
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
        and (evidence.read_only_aside or not failure.place.is_aside)
        and not has_survived(evidence, failure)
        and not any(_belongs_to(hit, failure, library) for hit in counted)
        and not any(library.entries[hit.entry].role is Role.BENIGN and _announces(hit, failure) for hit in counted)
        and not (is_closing(failure) and _fails_before(failure, evidence, counted))
    ]
    if not open_ones:
        return None
    stamps = [failure.place.stamp for failure in open_ones]
    timed = all(stamp is not None and stamps[0] is not None and stamp.comparable(stamps[0]) for stamp in stamps)

    says = any(is_uncaught(failure) and says_itself(failure) for failure in open_ones)

    def order(failure: Failure) -> tuple[bool, bool, bool, bool, bool, bool, float, tuple[str, int]]:
        stamp = failure.place.stamp
        return (
            is_wrapper(failure),
            _is_of_peer(failure),
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
    """For an exception without a traceback, the frames of the next process whose own exception was cut off."""
    cut = (other for other in failures if other.kind == HEADLESS and other.place.file == failure.place.file)
    return next((f.frames for f in cut if 0 < f.place.line - failure.place.line <= _CHAIN_LINES), ())


def _follows_from(failure: Failure, known: Sequence[Failure]) -> bool:
    """Whether an exception was raised while handling a known one, whose traceback is right above it."""
    above = [f for f in known if f.place.file == failure.place.file and f.place.line < failure.place.line]
    return failure.chained and any(failure.place.line - (f.place.line + f.lines) <= _CHAIN_LINES for f in above)


def _belongs_to(hit: Hit, failure: Failure, library: Library) -> bool:
    """Whether a known line is inside a failure, or right below it, as the second line of its message is.

    A symptom in the line that begins a traceback announces the exception at its end and does not explain it.
    """
    below = hit.place.line - failure.place.line
    can_be_cause = library.entries[hit.entry].can_be_cause
    if below == 0 and failure.frames and not can_be_cause:
        return False
    return reaches(failure, hit, failure.lines + (_MESSAGE_LINES if can_be_cause else 0))


def _came_before(failure: Failure | None, cause: Sighting) -> bool:
    """Whether an unknown failure came clearly before a failure that may be only fallout."""
    if failure is None or is_wrapper(failure):
        return False
    one, other = failure.place.stamp, cause.first.since
    if one and other and one.comparable(other):
        return one.seconds < other.seconds - 1.0
    same_file = failure.place.file == cause.first.place.file
    return same_file and failure.place.offset < cause.first.place.offset
