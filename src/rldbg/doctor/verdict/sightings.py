"""The entries whose lines count: their context is there, and they are not only repeated from elsewhere."""

from collections.abc import Mapping, Sequence

from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.evidence import Hit, LogEvidence
from rldbg.doctor.logs.survival import have_survived
from rldbg.doctor.verdict.echoes import is_only_repeated
from rldbg.doctor.verdict.judgement import Sighting
from rldbg.doctor.verdict.order import explains

_RIGHT_BEFORE_S = 90.0
_RIGHT_BEFORE_LINES = 15


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


def only_aside(seen: Mapping[str, Sighting], library: Library) -> list[Sighting]:
    """What was seen only in logs of Ray's side processes and explains nothing seen elsewhere."""
    aside = [s for s in seen.values() if all(hit.place.is_aside for hit in s.hits)]
    elsewhere = [s for s in seen.values() if s not in aside]
    return [s for s in aside if not any(_is_direct(s, other, library) for other in elsewhere)]


def _is_direct(cause: Sighting, effect: Sighting, library: Library) -> bool:
    """A side process harms only what depends on it directly, so indirect effects do not count."""
    return effect.entry.id in library.direct_effects[cause.entry.id] and explains(cause, effect, library)
