"""How large the gap between rollout and trainer is, in common metrics, in total and by part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rldbg.analysis import mismatch_metrics
from rldbg.mismatch.token_table import TokenTable

_FROM_RATIOS = {"kl/k1": "k1", "kl/k3": "k3", "ppl_ratio": "perplexity_ratio", "ratio/ess": "ess"}
METRICS = ("tokens", "mean_abs", "max_abs", "beyond_e", *_FROM_RATIOS.values())
MismatchMetrics = dict[str, float]


def metrics_of(rollout: np.ndarray, trainer: np.ndarray) -> MismatchMetrics:
    """Per-token |gap| (mean and max), the share of tokens whose ratio is beyond e, k1 and k3 KL of the trainer to the
    rollout, perplexity ratio and effective sample size. Tokens without two finite log probs are counted apart."""
    finite = np.isfinite(rollout) & np.isfinite(trainer)
    size = np.abs(rollout[finite] - trainer[finite])
    numbers: MismatchMetrics = {"tokens": float(len(rollout)), "not_finite": float(np.count_nonzero(~finite))}
    if not size.size:
        return numbers
    known = mismatch_metrics(trainer, rollout)
    return {
        **numbers,
        "mean_abs": float(size.mean()),
        "max_abs": float(size.max()),
        "beyond_e": float((size > 1).mean()),
        **{ours: known[theirs] for theirs, ours in _FROM_RATIOS.items()},
    }


def by_part(table: TokenTable) -> dict[str, dict[str, MismatchMetrics]]:
    """The metrics of each step, position, turn, length, replica and version lag, where there is more than one."""
    lengths = table.of_samples([np.count_nonzero(place.tokens.loss_mask) for place in table.places])
    columns: dict[str, tuple[np.ndarray, Callable[[object], str]]] = {
        "step": (table.of_samples([place.step for place in table.places]), str),
        "position": (_power_of_two(table.response_position), _range_text),
        "turn": (table.turn, str),
        "length": (_power_of_two(lengths), _range_text),
        "replica": (table.of_samples([place.replica or "?" for place in table.places]), str),
        "version lag": (table.lag, lambda lag: "?" if lag == -1 else str(lag)),
    }
    found = {}
    for name, (column, text) in columns.items():
        values = np.unique(column)
        if len(values) > 1 or name == "step":
            chosen = {text(value): column == value for value in values.tolist()}
            found[name] = {label: metrics_of(table.rollout[at], table.trainer[at]) for label, at in chosen.items()}
    return found


def _power_of_two(values: np.ndarray) -> np.ndarray:
    """The power of two at or below each value; 0 for 0."""
    return np.where(values > 0, 2 ** np.floor(np.log2(np.maximum(values, 1))).astype(np.int64), 0)


def _range_text(start: object) -> str:
    first = int(str(start))
    return str(first) if first < 2 else f"{first}-{2 * first - 1}"
