"""Checks on critics: what the policy is trained on follows from their values and returns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rldbg.analysis.checks.base import Check, NotApplicable, StepView, Violation
from rldbg.core import SampleId

_SLACK = 1e-3
_FEWEST = 4


def _advantages_follow_values(view: StepView) -> Iterable[Violation]:
    """A return is a value and its advantage, before advantages are shifted and scaled over the batch."""
    places, expected, given = _tokens(view)
    if len(given) < _FEWEST or np.ptp(expected) < 1e-6:
        raise NotApplicable("no values, returns and advantages of the same tokens, or all of them equal")
    centred = expected - expected.mean()
    factor = float(centred @ given) / float(centred @ centred)
    gap = np.abs(given - given.mean() - factor * centred)
    worst = int(gap.argmax())
    sample, token = places[worst]
    if gap[worst] > _SLACK * max(1.0, float(np.abs(given).max())):
        text = f"recorded advantage {given[worst]:.6g}, return - value {expected[worst]:.6g}"
        off = f"{gap[worst]:.4g} away from one shift and one scale for the whole batch"
        yield Violation(f"step {view.step} sample {sample} token {token}", (text, off))
    elif factor <= 0:
        text = "the advantages have the sign of value - return"
        yield Violation(f"step {view.step}", (text,))


def _tokens(view: StepView) -> tuple[list[tuple[SampleId, int]], np.ndarray, np.ndarray]:
    """The trained tokens of the step: where they are, return less value, and advantage."""
    places: list[tuple[SampleId, int]] = []
    columns: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for record in view.side.records("prepared_trajectories", view.step):
        if not {"values", "returns", "advantages", "loss_mask"} <= set(record.fields):
            continue
        rows = zip(*(record.rows(name) for name in ("values", "returns", "advantages", "loss_mask")), strict=True)
        for sample, (values, returns, advantages, mask) in zip(record.samples, rows, strict=True):
            trained = np.flatnonzero(np.asarray(mask))
            places += [(sample, int(token)) for token in trained]
            columns[0].append((np.asarray(returns, np.float64) - np.asarray(values, np.float64))[trained])
            columns[1].append(np.asarray(advantages, np.float64)[trained])
    return places, *(np.concatenate([np.zeros(0), *column]) for column in columns)  # type: ignore[return-value]


CHECKS = (
    Check(
        "advantages-follow-values",
        "advantages follow from the critic's values and returns",
        "a return is its value plus the advantage, up to one shift and scale of all: values of different tokens, "
        "a different mask, or advantages changed in between",
        ("look at the named token: rldbg show RUN --step N --sample GROUP/RUN",),
        _advantages_follow_values,
    ),
)
