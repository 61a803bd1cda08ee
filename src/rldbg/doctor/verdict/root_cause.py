"""From all evidence to one verdict: which failure is the root cause, which are consequences, and when it is unknown.

The rules, in order. A hit whose context is missing does not count. A warning or a harmless look-alike is a note. A
failure that training visibly survived is a note. A failure that another one present can have caused, and that did not
come before it, is fallout. A failure that is no part of the exception that ended its process, which says itself what
was wrong, is a bystander. Symptoms are never the answer. What is left is the root cause; if nothing is left, and
something failed, the cause is not in the logs.
"""

from collections.abc import Sequence
from dataclasses import replace

from rldbg.doctor.clues.conditions import kind_of_condition
from rldbg.doctor.clues.none_values import settings_not_given
from rldbg.doctor.knowledge.entries import Role
from rldbg.doctor.knowledge.families import family_of, kind_of
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.endings import is_of_an_item
from rldbg.doctor.logs.evidence import PROGRAM_ENDED, EndlessWait, Failure, Hit, LogEvidence, LogPlace
from rldbg.doctor.logs.failures import is_wrapper
from rldbg.doctor.logs.standing import is_information, is_warning
from rldbg.doctor.logs.survival import (
    came_after_end,
    has_survived,
    holds,
    is_closing,
    is_uncaught,
    went_on_after,
)
from rldbg.doctor.logs.tracebacks import HEADLESS
from rldbg.doctor.search.expressions import Expression
from rldbg.doctor.verdict.bystanders import bystanders_of, late_ones, says_itself, stands_alone, tells_of_others
from rldbg.doctor.verdict.first_error import first_unknown, is_of_peer
from rldbg.doctor.verdict.judgement import Judgement, Sighting
from rldbg.doctor.verdict.lasting import with_lasting
from rldbg.doctor.verdict.order import announces, by_time, came_before, explains, precedes
from rldbg.doctor.verdict.sightings import only_aside, sightings

_THREAD = (" in _bootstrap", " in _bootstrap_inner")
"""The first frame of what ended a thread or a child process: nothing caught it."""


def judge(evidence: LogEvidence, library: Library, *, ended_well: bool = False) -> Judgement:
    """The root causes among everything seen; how a log ends says nothing where the program is known to have ended
    well."""
    seen = with_lasting(sightings(evidence, library), evidence, library)
    aside = [] if evidence.read_only_aside else only_aside(seen, library)
    notes = [s for s in seen.values() if s.survived or s in aside or _is_harmless(s, evidence)]
    live = [s for s in seen.values() if s not in notes]
    warnings = [s for s in live if s.entry.severity == "warning"]
    errors = [s for s in live if s.entry.severity == "error"]
    late = late_ones(errors, evidence)
    errors = [s for s in errors if s not in late]
    candidates = [s for s in errors if s.entry.can_be_cause]
    unknown = first_unknown(evidence, library, seen)
    is_ended = unknown is not None and unknown.kind == PROGRAM_ENDED
    unknown = None if is_ended else unknown
    if unknown is not None and (_only_reports(unknown, errors) if errors else unknown.warned):
        unknown = None
    if unknown is not None and tells_of_others(unknown):
        unknown = _exception_of_symptom(unknown, errors, evidence) or unknown
    if unknown is None and not errors and not ended_well:
        unknown = _ending(evidence, notes)
    causes = _causes(candidates, errors, library)
    bystanders: list[Sighting] = []
    while found := bystanders_of(causes, evidence, library):  # what they seemed to explain is judged without them
        bystanders += found
        rest = [s for s in errors if s not in bystanders]
        causes = _causes([s for s in candidates if s in rest], rest, library)
    causes = [s for s in causes if not _ended_a_stall(s, errors, unknown, evidence)]
    if _is_doubtful(causes, errors, unknown, library) or _was_handled(causes, unknown, evidence):
        causes = []
    symptoms = [s for s in errors if s not in causes and s not in bystanders]
    if not causes:
        warned = [] if unknown is not None and says_itself(unknown) else _warned_causes(warnings, symptoms, library)
        causes = warned or _family(unknown, evidence, symptoms, library) or _despite(symptoms, evidence, library)
    notes += [s for s in warnings if s not in causes]
    return Judgement(
        causes=tuple(_ordered(causes, symptoms, evidence, library)),
        fallout=tuple(_nearest_first([s for s in symptoms if s not in causes], library)),
        notes=tuple(notes),
        bystanders=(*late, *bystanders),
        first_error=unknown,
        failed=bool(errors or causes or unknown or is_ended),
    )


def _only_reports(unknown: Failure, errors: Sequence[Sighting]) -> bool:
    """Whether an unknown failure says no more than that a process ended, beside known ones: it is a wrapper, or no
    exception but the report of a crash that comes after one of them."""
    if unknown.is_crash:
        hit = Hit("", unknown.place, unknown.headline, unknown.headline)
        return any(precedes(error.first, hit) for error in errors)
    return is_wrapper(unknown) or unknown.kind == HEADLESS


def _exception_of_symptom(unknown: Failure, errors: Sequence[Sighting], evidence: LogEvidence) -> Failure | None:
    """The first exception in the log of a failure that is known as a symptom, before one that tells of others."""
    symptoms = [s for s in errors if s.entry.role is Role.SYMPTOM and not s.survived]
    earlier = [
        failure
        for failure in evidence.failures
        if failure.frames
        and not (is_wrapper(failure) or failure.kind == HEADLESS or failure.chained)
        and failure.place.file == unknown.place.file
        and failure.place.offset < unknown.place.offset
        and any(holds(failure, hit) for symptom in symptoms for hit in symptom.hits)
    ]
    return min(earlier, key=lambda failure: failure.place.offset, default=None)


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
            and not (is_of_an_item(ending.message) and not ending.is_crash and _has_counted(evidence, ending.place))
        ),
        None,
    )


def _has_counted(evidence: LogEvidence, place: LogPlace) -> bool:
    """Whether training counts steps anywhere in a log."""
    return went_on_after(evidence, replace(place, offset=-1))


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
    if came_before(unknown, causes[0]):
        return True
    known = {effect for s in causes for effect in library.direct_effects[s.entry.id]}
    open_ones = [s for s in errors if s not in causes and s.entry.id not in known]
    return any(library.is_telling(s.entry.id) for s in open_ones)


def _ended_a_stall(cause: Sighting, errors: Sequence[Sighting], unknown: Failure | None, evidence: LogEvidence) -> bool:
    """Whether a limit from outside ended a program that had failed before and did no step since, or was waiting."""
    limit = cause.entry.after_stall
    if limit is None or not any(Expression(limit).search(hit.text) for hit in cause.hits):
        return False
    if any(_lasted_until(wait, cause.first.place, evidence) for wait in evidence.waiting):
        return True
    if came_before(unknown, cause):
        return True
    return any(precedes(other.first, cause.first) for other in errors if other is not cause)


def _lasted_until(wait: EndlessWait, place: LogPlace, evidence: LogEvidence) -> bool:
    """Whether a program was still waiting when a line came, and had done no step since it began to."""
    return (
        wait.file == place.file
        and wait.until < place.offset
        and not went_on_after(evidence, replace(place, offset=wait.since))
    )


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
        and not is_of_peer(unknown)
        and bool(holder.frames)
        and not (is_uncaught(holder) or holder.frames[0].endswith(_THREAD))
        and not unknown.chained
        and unknown.place.speaker.pid == hit.place.speaker.pid
        and unknown.place.file == hit.place.file
        and unknown.place.offset > hit.place.offset
    )


def _causes(candidates: Sequence[Sighting], seen: Sequence[Sighting], library: Library) -> list[Sighting]:
    """Candidates that nothing seen explains; roots before those that may be either."""
    alive = [s for s in candidates if not any(explains(o, s, library) for o in seen if o is not s)]
    roots = [s for s in alive if s.entry.role is Role.ROOT] or alive
    return [s for s in roots if not _is_only_told(s)] or roots


def _is_only_told(sighting: Sighting) -> bool:
    """Whether all its lines are such as their logger calls an information or a warning, as of a wait that can have
    ended: beside an error it is not the cause."""
    return all(is_information(hit.text) or is_warning(hit.text) for hit in sighting.hits)


def _warned_causes(warnings: Sequence[Sighting], symptoms: Sequence[Sighting], library: Library) -> list[Sighting]:
    """A warning is the answer when it explains a symptom; alone it is a note."""
    return [s for s in warnings if any(explains(s, symptom, library) for symptom in symptoms)]


def _family(
    unknown: Failure | None, evidence: LogEvidence, symptoms: Sequence[Sighting], library: Library
) -> list[Sighting]:
    """The family of an exception without an entry, unless something went wrong before it."""
    if unknown is None or is_wrapper(unknown) or is_of_peer(unknown):
        return []
    entry = family_of(unknown, library.entries.values())
    is_not_given = "value-is-none" if settings_not_given(unknown) else ""
    stated = library.entries.get(kind_of_condition(unknown) or is_not_given)
    if stated is not None and (entry is None or (entry.family is not None and entry.family.yields)):
        hit = Hit(stated.id, unknown.place, unknown.headline, unknown.headline)
        return [Sighting(stated, (hit,), survived=False, by_family=True)] if _ended_the_run(unknown, evidence) else []
    if entry is None or entry.family is None or (entry.family.asked_last and not _ended_the_run(unknown, evidence)):
        return []
    hit = Hit(entry.id, unknown.place, unknown.headline, unknown.headline)
    earlier = [s for s in symptoms if precedes(s.first, hit) and not announces(s.first, unknown)]
    kind = kind_of(unknown, library.entries.values()) if entry.family.asked_last else None
    found = Sighting(entry, (hit,), survived=False, by_family=True, kind=None if kind is entry else kind)
    return [] if earlier else [found]


def _despite(symptoms: Sequence[Sighting], evidence: LogEvidence, library: Library) -> list[Sighting]:
    """The family of the first exception that is known only as symptoms, where it says whose trouble they are."""
    hits = sorted((hit for symptom in symptoms for hit in symptom.hits), key=lambda hit: hit.place.order)
    held = [(hit, failure) for hit in hits for failure in evidence.failures if failure.frames and holds(failure, hit)]
    for hit, failure in held[:1]:
        entry = family_of(failure, (e for e in library.entries.values() if e.family and hit.entry in e.family.despite))
        if entry is not None and not is_wrapper(failure):
            told = Hit(entry.id, failure.place, failure.headline, failure.headline)
            return [Sighting(entry, (told,), survived=False, by_family=True)]
    return []


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


def _ordered(
    causes: Sequence[Sighting], symptoms: Sequence[Sighting], evidence: LogEvidence, library: Library
) -> list[Sighting]:
    """Exceptions without a traceback last; the cause that explains what was seen first; among equals the earliest."""

    def order(cause: Sighting) -> tuple[bool, bool]:
        explains_none = bool(symptoms) and not any(explains(cause, other, library) for other in symptoms)
        return stands_alone(cause, evidence), explains_none

    return sorted(by_time(causes), key=order)


def _nearest_first(symptoms: Sequence[Sighting], library: Library) -> list[Sighting]:
    """Symptoms that another one brings about come after those that none does; among equals the earliest first."""

    def follows(symptom: Sighting) -> bool:
        name = symptom.entry.id
        others = (other.entry.id for other in symptoms if other is not symptom)
        return any(name in library.effects[other] and other not in library.effects[name] for other in others)

    return sorted(by_time(symptoms), key=follows)
