"""A sighting as the diagnosis tells it: in whose words, how sure it is and why, and which steps fit this log."""

import re
from collections.abc import Mapping, Sequence

from rldbg.core import redact_text
from rldbg.doctor.answer.candidates import words_seen
from rldbg.doctor.answer.diagnosis import Cause, Confidence, ProbeResult, Quote
from rldbg.doctor.answer.specifics import specifics
from rldbg.doctor.clues.told_before import told_before
from rldbg.doctor.knowledge.entries import Probe, Role
from rldbg.doctor.logs.evidence import Failure, LogEvidence
from rldbg.doctor.logs.failures import is_wrapper
from rldbg.doctor.logs.frames import asks, story
from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.logs.survival import holds
from rldbg.doctor.logs.tracebacks import HEADLESS
from rldbg.doctor.verdict.judgement import Judgement, Sighting
from rldbg.doctor.verdict.lasting import first_time, has_stayed
from rldbg.frameworks import frameworks

_QUOTES_KEPT = 5
_WORDS_SHOWN = 200
_LEVELS: tuple[Confidence, ...] = ("low", "medium", "high")
_FOR_ONE = re.compile(r"(?P<program>[A-Za-z][\w-]{2,20}(?: RL)?): ")
"""How a step begins that is for one program only."""


def told_cause(
    sighting: Sighting,
    judgement: Judgement,
    evidence: LogEvidence,
    probes: Sequence[ProbeResult],
    environment: dict[str, str],
) -> Cause:
    texts = [hit.text for hit in sighting.hits]
    entry, kind = sighting.entry.as_told_by(texts, _frames(sighting, evidence)), sighting.kind
    confidence, why = _confidence_of(sighting, judgement, evidence, probes, environment)
    return Cause(
        id=entry.id,
        title=entry.title,
        title_zh=entry.title_zh,
        confidence=confidence,
        why=tuple(why),
        evidence=tuple(Quote.of(hit) for hit in sighting.hits[:_QUOTES_KEPT]),
        count=max(len(sighting.hits), evidence.counts.get(entry.id, 0)),
        cause=f"{entry.cause} The message says: {kind.title}. {kind.cause}" if kind else entry.cause,
        fix=_fitting((*(kind.fix[:1] if kind else ()), *entry.fix), words_seen(evidence), _programs()),
        sources=tuple(entry.sources),
        detail=_detail(sighting, judgement.first_error, evidence),
        words=_words(sighting, evidence),
    )


def _frames(sighting: Sighting, evidence: LogEvidence) -> tuple[str, ...]:
    """Those of the exception around the first line of a cause; where that one shows no program, of the others, too."""
    holders = [failure for hit in sighting.hits for failure in evidence.failures if holds(failure, hit)]
    first = next((failure.frames for failure in holders), ())
    return first if any(map(asks, first)) else tuple(frame for failure in holders for frame in failure.frames)


def _programs() -> list[str]:
    return [framework.name.replace("_", " ") for framework in frameworks()]


def told_above(sighting: Sighting, judgement: Judgement, evidence: LogEvidence, sources: Sequence[LogSource]) -> str:
    """What the log says above a cause of the thing that it names."""
    if sighting not in judgement.causes:
        return ""
    holder = next((failure for failure in evidence.failures if holds(failure, sighting.first)), None)
    return redact_text(told_before(sighting.first.place, holder.message if holder else sighting.first.text, sources))


def _words(sighting: Sighting, evidence: LogEvidence) -> str:
    """The line that tells the variant of a cause; else the exception around its first line, or that line itself where
    it is none, or only reports another."""
    hit = sighting.first
    told = sighting.entry.variant_in([each.text for each in sighting.hits])
    holder = next((failure for failure in evidence.failures if holds(failure, hit)), None)
    alike = (failure for failure in evidence.failures if failure.count > 1 and hit.matched in failure.headline)
    holder = holder or next(alike, None)  # of one that came often only some places are kept
    is_torn = hit.matched not in hit.text or hit.text.lstrip().startswith("assert ")
    said = hit.text if is_torn else hit.text[hit.text.find(hit.matched) :]
    if told is not None:
        said = told[1].string[told[1].start() :]
    if holder is not None and (told is None or 0 <= holder.headline.find(said) < _WORDS_SHOWN):
        said = said if is_wrapper(holder) or holder.is_crash or holder.kind == HEADLESS else holder.headline
    return redact_text(" ".join(said.split())[:_WORDS_SHOWN])


def _detail(sighting: Sighting, first_error: Failure | None, evidence: LogEvidence) -> str:
    """What the exception around the first line of a cause says; the line itself where it is none."""
    hit = sighting.first
    if told := first_time(sighting, stayed=not sighting.survived or has_stayed(sighting, evidence)):
        return redact_text(told)
    holder = next((failure for failure in evidence.failures if holds(failure, hit)), None)
    holder = first_error if sighting.only_says_kind else holder
    said = Failure("", hit.text, hit.place, holder.frames if holder else ())
    detail = (specifics(holder) if holder else "") or specifics(said)
    if holder is not None and sighting.only_says_kind and (told := story(holder)):
        head, _semicolon, rest = detail.partition("; ")
        detail = "; ".join(filter(None, (f"{head.rstrip('.') or holder.headline}, {told}", rest)))
    return redact_text(detail)


def _confidence_of(
    sighting: Sighting,
    judgement: Judgement,
    evidence: LogEvidence,
    probes: Sequence[ProbeResult],
    environment: Mapping[str, str],
) -> tuple[Confidence, list[str]]:
    """How sure a named cause is and why: what the line is, what else was seen, what the machine says."""
    level, why = _from_role(sighting)
    rivals = [other for other in judgement.causes if other is not sighting]
    if rivals and len(rivals) < len(judgement.causes):  # it is one of the causes itself
        level = min(level, 1)
        why.append(f"other causes were found too: {', '.join(other.entry.id for other in rivals)}")
    told = sighting.entry.variant_in([hit.text for hit in sighting.hits], _frames(sighting, evidence))
    if told is not None and told[0].unsure:
        level = min(level, 1)
        why.append("the line says what failed, and not why")
    if sighting.survived:
        level = 0
        why.append("training continued after it")
    confirmed = [reason for probe in sighting.entry.probes if (reason := _confirms(probe, probes, environment))]
    if confirmed:
        level = min(level + 1, 2)
        why += confirmed
    return _LEVELS[level], why


def _from_role(sighting: Sighting) -> tuple[int, list[str]]:
    family = sighting.entry.family if sighting.by_family else None
    if family is not None and family.asked_last:
        shows = "the traceback shows which package raised it" if family.raised_in else "its message says its kind"
        return 0, [f"no known failure explains this exception; {shows}"]
    if family is not None:
        return 1, ["this exception has no entry of its own; it is judged by its type and where it was raised"]
    match sighting.entry.role:
        case Role.ROOT:
            stated = "the line itself states this failure, and nothing else in these logs explains it"
            return (2, [stated]) if sighting.entry.is_confirmed else (1, [stated, "only users have reported it so far"])
        case Role.EITHER:
            return 1, ["it can be a consequence of another failure, but these logs show none that would explain it"]
        case Role.SYMPTOM:
            return 0, ["it is always a consequence of another failure"]
        case Role.BENIGN:
            return 0, ["it looks like a failure but is harmless"]


def _confirms(probe: Probe, results: Sequence[ProbeResult], environment: Mapping[str, str]) -> str | None:
    """The sentence by which a look at the machine or the job's variables confirms an entry, if it does."""
    if probe.check is not None:
        bad = next((r for r in results if r.id == probe.check and r.status in ("fail", "warn")), None)
        return f"the machine confirms it: {bad.reason}" if bad else None
    if probe.env is None or probe.env not in environment:
        return f"{probe.env} is not set in the job" if environment and probe.env and probe.is_set is False else None
    value = environment[probe.env]
    if probe.contains is not None:
        return f"the job has {probe.env}={value}" if probe.contains in value else None
    return f"the job has {probe.env} set" if probe.is_set else None


def _fitting(steps: Sequence[str], seen: str, programs: Sequence[str]) -> tuple[str, ...]:
    """The steps without those for programs that the log, in lower case, never names, where others are for one that it
    does name."""
    owners = [_owner(step, programs) for step in steps]
    named = {owner for owner in owners if owner and owner in seen}
    return tuple(step for step, owner in zip(steps, owners, strict=True) if not named or not owner or owner in named)


def _owner(step: str, programs: Sequence[str]) -> str:
    found = _FOR_ONE.match(step)
    name = found["program"].lower() if found else ""
    return name if name in programs else ""
