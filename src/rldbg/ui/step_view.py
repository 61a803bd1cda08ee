"""From a spike to the tokens: what was wrong at a step, and which samples and tokens carry most of its loss."""

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from rldbg.analysis import CHECKS, SampleTokens, Side, check, metrics_by_step, read_tokens
from rldbg.core import IncompleteDataError
from rldbg.recording import Recording
from rldbg.ui.opened_run import clip_limits
from rldbg.ui.sample_view import is_clipped

_SHOWN = 25

Weigh = Callable[[SampleTokens], tuple[np.ndarray, ...] | None]


def step_view(recording: Recording, step: int) -> dict[str, Any]:
    """The document of one step's page."""
    samples = read_tokens(Side(recording, "A"), step)
    if not samples and step not in recording.steps():
        raise IncompleteDataError(f"{recording.title} has no step {step}", "choose a step of the curves")
    # Integrity is of the whole recording: the overview has it.
    report = check(recording, steps=[step], only=[item.id for item in CHECKS])
    weigh, by = _weights(samples.values())
    clip = clip_limits(recording.run_facts().get("config"))
    rows = (row | _gradient(sample, clip) for sample in samples.values() if (row := _carried(sample, weigh)))
    carried = sorted(rows, key=lambda row: (-row["not_finite"], -row["loss"]))
    for part, share in (("loss", "share"), ("gradient", "gradient_share")):
        total = sum(row[part] or 0.0 for row in carried)
        for row in carried:
            row[share] = row[part] / total if total and row[part] is not None else None
    return {
        "step": step,
        "metrics": metrics_by_step(recording, [step])[0] if step in recording.steps() else {},
        "check": report.to_dict(),
        "samples": carried[:_SHOWN],
        "count": len(samples),
        "by": by,
    }


def _weights(samples: Collection[SampleTokens]) -> tuple[Weigh, str]:
    """What a token's log prob is weighted by where the loss itself is not recorded, and what the sum then is."""
    if any("elementwise_loss" in sample.quantities for sample in samples):
        return lambda sample: None, "|loss| of each token, as recorded"
    if any("advantages" in sample.quantities for sample in samples):
        return lambda sample: sample.trained("advantages"), "|log prob x advantage| of each token"
    rewards: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.reward is not None:
            rewards[sample.sample.group_id].append(sample.reward)
    if not any(len(set(group)) > 1 for group in rewards.values()):
        return lambda sample: None, "|log prob| of each token: neither losses nor advantages are recorded"
    means = {group: float(np.mean(values)) for group, values in rewards.items()}

    def centred(sample: SampleTokens) -> tuple[np.ndarray, ...] | None:
        weight = 0.0 if sample.reward is None else sample.reward - means[sample.sample.group_id]
        return (np.array([weight]),)

    return (
        centred,
        "|log prob x (reward - mean of its group)| of each token: neither losses nor advantages are recorded",
    )


def _carried(sample: SampleTokens, weigh: Weigh) -> dict[str, Any] | None:
    """How much a sample adds to the sum: its loss as recorded, else what the loss is made of."""
    recorded = sample.trained("elementwise_loss")
    if recorded is not None:
        values, positions = np.abs(recorded[0].astype(np.float64)), recorded[1]
    else:
        found = next(
            (f for name in ("log_probs", "old_log_probs", "rollout_log_probs") if (f := sample.trained(name))), None
        )
        if found is None:
            return None
        weights = weigh(sample)
        values, positions = np.abs(found[0].astype(np.float64)), found[1]
        if weights is not None and len(weights[0]) in (1, len(values)):
            values = values * np.abs(weights[0].astype(np.float64))
    if not values.size:
        return None
    worst = int(np.argmax(np.where(np.isfinite(values), values, np.inf)))
    not_finite, largest = int((~np.isfinite(values)).sum()), float(values[worst])
    values = np.where(np.isfinite(values), values, 0.0)
    both = sample.of_rollout_and_trainer()
    gaps = (
        np.abs(both[1].astype(np.float64) - both[0].astype(np.float64)) if both is not None and len(both[0]) else None
    )
    return {
        "sample": str(sample.sample),
        "loss": float(values.sum()),
        "reward": sample.reward,
        "tokens": len(values),
        "worst_token": int(positions[worst]),
        "worst_value": largest,
        "not_finite": not_finite,
        "difference": float(np.nanmax(gaps)) if gaps is not None and np.isfinite(gaps).any() else None,
    }


def _gradient(sample: SampleTokens, clip: tuple[float, float] | None) -> dict[str, float | None]:
    """The policy gradient's weight on a sample: |advantage x ratio| of each token, 0 where it is clipped."""
    found = sample.trained("advantages", "prob_ratio")
    if found is None:
        alone = sample.trained("advantages")
        return {"gradient": None if alone is None else _finite_sum(alone[0].astype(np.float64))}
    advantages, ratio = (part.astype(np.float64) for part in found[:2])
    weights = advantages * ratio
    if clip is not None:
        weights = np.where(is_clipped(ratio, advantages, clip), 0.0, weights)
    return {"gradient": _finite_sum(weights)}


def _finite_sum(values: np.ndarray) -> float:
    return float(np.abs(values[np.isfinite(values)]).sum())
