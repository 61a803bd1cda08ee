"""A check is a small pure function over one step of a recording that yields the violations of an invariant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens, read_tokens
from rldbg.core import Finding, SampleId, Severity
from rldbg.recording import IDS_FROM, Record

_SPREAD = 1e-3


class StepView:
    """One step of a recording, read once and shared by all checks."""

    def __init__(self, side: Side, step: int) -> None:
        self.side = side
        self.step = step

    @cached_property
    def samples(self) -> dict[SampleId, SampleTokens]:
        return read_tokens(self.side, self.step)

    @cached_property
    def rewards(self) -> dict[SampleId, float]:
        """The rewards, also of samples whose tokens were not recorded, as in text dumps."""
        known = {name: sample.reward for name, sample in self.samples.items() if sample.reward is not None}
        return self._per_sample("reward") | known

    @cached_property
    def advantages(self) -> dict[SampleId, float]:
        """One per sample: that of its first trained token."""
        found = {name: sample.trained("advantages") for name, sample in self.samples.items()}
        known = {name: float(item[0][0]) for name, item in found.items() if item is not None and item[0].size}
        return self._per_sample("advantages") | known

    @cached_property
    def has_token_advantages(self) -> bool:
        """Whether advantages of most samples differ from token to token, as a critic or a discount makes them."""
        found = (sample.trained("advantages") for sample in self.samples.values())
        spreads = [bool(np.ptp(item[0]) > _SPREAD) for item in found if item is not None and len(item[0]) > 1]
        return 2 * sum(spreads) > len(spreads)

    @cached_property
    def texts(self) -> dict[SampleId, str]:
        """Responses of samples whose tokens were not recorded."""
        return {
            sample: str(extra["completion"])
            for sample, extra in self.extras.items()
            if sample not in self.samples and "completion" in extra
        }

    @cached_property
    def extras(self) -> dict[SampleId, Any]:
        """What the trajectories' extra fields say of each sample."""
        return {
            sample: extra
            for record in self._sequences()
            if "extra_fields" in record.fields
            for sample, extra in zip(record.samples, record.rows("extra_fields"), strict=False)
        }

    @cached_property
    def versions(self) -> dict[SampleId, tuple[int, int]]:
        """The oldest weights that made a token of each sample, and the weights that train on it."""
        found = {}
        for record in self._sequences():
            if "policy_versions" not in record.fields or record.policy_version is None:
                continue
            for sample, versions in zip(record.samples, record.rows("policy_versions"), strict=False):
                made = np.asarray(versions)[np.asarray(versions) >= 0]
                if made.size:
                    found[sample] = int(made.min()), record.policy_version
        return found

    def is_left_out(self, sample: SampleId) -> bool:
        """Whether the trainer says that it does not train on this sample: cut off, or without a reward."""
        return bool(self.extras.get(sample, {}).get("left_out"))

    def sequences_of_rollout(self, sample: SampleId) -> int:
        """How many sequences its rollout gave: then each has a prompt of its own, and the last one's reward."""
        return int(self.extras.get(sample, {}).get("outputs", 1))

    def is_earlier(self, sample: SampleId) -> bool:
        """Whether it is not the last sequence of its rollout, which alone is one of the group."""
        return int(self.extras.get(sample, {}).get("output", 0)) < self.sequences_of_rollout(sample) - 1

    @cached_property
    def made_up_ids(self) -> bool:
        """Whether groups are those of equal prompts in a file: its reader made the ids."""
        return any(IDS_FROM in record.extra for record in self._sequences())

    def _sequences(self) -> Iterator[Record]:
        for kind in ("trajectory", "prepared_trajectories"):
            yield from self.side.records(kind, self.step)

    def _per_sample(self, field: str) -> dict[SampleId, float]:
        return {
            sample: float(value)
            for record in self._sequences()
            if field in record.fields
            for sample, value in zip(record.samples, record.rows(field), strict=False)
            if np.ndim(value) == 0
        }


@dataclass(frozen=True, slots=True)
class Check:
    """An invariant, the likely cause of a violation, and what to do about it.

    `run` yields (where, evidence) for each violation, or raises NotApplicable when the recording lacks what it needs.
    """

    id: str
    title: str
    cause: str
    fix: tuple[str, ...]
    run: Callable[[StepView], Iterable[Violation]]
    severity: Severity = Severity.ERROR
    # Whether it looks at versions of weights, which may have no step.
    of_weights: bool = False

    def findings(self, view: StepView) -> list[Finding]:
        return [
            Finding(self.id, self.severity, violation.where, violation.evidence, self.cause, self.fix)
            for violation in self.run(view)
        ]


@dataclass(frozen=True, slots=True)
class Violation:
    where: str
    evidence: tuple[str, ...]


class NotApplicable(Exception):
    """The recording does not contain what the check needs; the message says what is missing."""
