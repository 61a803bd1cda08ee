"""How sure a named cause is, and why, in words."""

from collections.abc import Mapping, Sequence

from rldbg.doctor.diagnosis import Confidence, ProbeResult
from rldbg.doctor.entries import Probe, Role
from rldbg.doctor.root_cause import Judgement, Sighting

_LEVELS: tuple[Confidence, ...] = ("low", "medium", "high")


def confidence_of(
    sighting: Sighting, judgement: Judgement, probes: Sequence[ProbeResult], environment: Mapping[str, str]
) -> tuple[Confidence, list[str]]:
    """The level and its reasons: what the line is, what else was seen, what the machine says."""
    level, why = _from_role(sighting)
    rivals = [other for other in judgement.causes if other is not sighting and sighting in judgement.causes]
    if rivals:
        level = min(level, 1)
        why.append(f"other causes were seen too: {', '.join(other.entry.id for other in rivals)}")
    if sighting.survived:
        level = 0
        why.append("training went on after it")
    confirmed = [reason for probe in sighting.entry.probes if (reason := _confirms(probe, probes, environment))]
    if confirmed:
        level = min(level + 1, 2)
        why += confirmed
    return _LEVELS[level], why


def _from_role(sighting: Sighting) -> tuple[int, list[str]]:
    match sighting.entry.role:
        case Role.ROOT:
            level = 2 if sighting.entry.evidence != "reporter" else 1
            return level, ["the line itself states this failure, and nothing known to cause it was seen"]
        case Role.EITHER:
            return 1, ["it can be fallout too, but nothing known to cause it was seen"]
        case Role.SYMPTOM:
            return 0, ["it is always fallout of something else"]
        case Role.BENIGN:
            return 0, ["it looks like a failure and is none"]


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
