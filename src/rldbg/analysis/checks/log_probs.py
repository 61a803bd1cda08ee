"""Checks on log probs, entropy and ratios."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rldbg.analysis.checks.base import Check, NotApplicable, StepView, Violation
from rldbg.analysis.tokens import SampleTokens
from rldbg.core import Severity
from rldbg.recording import Ragged, Record

_LOG_PROB_FIELDS = {
    "trajectory": ("logprobs",),
    "prepared_trajectories": ("logprobs",),
    "old_log_probs": ("old_log_probs",),
    "forward_data": ("log_probs", "ref_log_probs"),
    "is_loss_debug": ("log_probs", "old_log_probs"),
}
# Rounding may raise the log prob of a token with probability 1 slightly above 0.
_SLACK = 1e-4
# A larger difference between two log probs of the same weights is not rounding, whatever the engine's precision.
_MISMATCH_MEAN = 0.05
_MISMATCH_TOKEN = 3.0
_ON_POLICY = 1e-3


def _recorded(
    view: StepView, names: dict[str, tuple[str, ...]]
) -> Iterator[tuple[Record, str, np.ndarray, np.ndarray]]:
    """Every recorded field of these names, with the tokens that count; sample ids are not needed."""
    seen = False
    for kind, fields in names.items():
        for record in view.side.records(kind, view.step):
            for name in fields:
                if name in record.fields:
                    seen = True
                    values = record.array(name)
                    yield record, name, values, _counting(record, values)
    if not seen:
        raise NotApplicable("no " + " or ".join(dict.fromkeys(name for fields in names.values() for name in fields)))


def _counting(record: Record, values: np.ndarray) -> np.ndarray:
    masks = [name for name in ("response_mask", "effective_valid", "loss_mask") if name in record.fields]
    if masks and record.array(masks[0]).shape == values.shape:
        counts: np.ndarray = record.array(masks[0]) != 0
        return counts
    # Without a mask, an exact 0 counts as padding.
    unpadded: np.ndarray = values != 0
    return unpadded


def _token_place(view: StepView, record: Record, name: str, flat: int) -> str:
    value = record.fields[name]
    if isinstance(value, Ragged):
        row = int(np.searchsorted(value.offsets, flat, side="right")) - 1
        token = flat - int(value.offsets[row])
    else:
        row, token = divmod(flat, value.shape[-1]) if len(value.shape) > 1 else (flat, 0)
    who = f"sample {record.samples[row]}" if record.samples else f"row {row}"
    return f"step {view.step} rank {record.key.rank} micro {record.key.micro} {who} token {token}"


def _finite(view: StepView) -> Iterable[Violation]:
    for record, name, values, counts in _recorded(view, _LOG_PROB_FIELDS):
        bad = np.flatnonzero(counts & ~np.isfinite(values))
        if bad.size:
            value = values.reshape(-1)[bad[0]]
            yield Violation(
                _token_place(view, record, name, int(bad[0])),
                (f"{record.key.kind}.{name} is {value} there, and at {bad.size} tokens of this record",),
            )


def _not_positive(view: StepView) -> Iterable[Violation]:
    for record, name, values, counts in _recorded(view, _LOG_PROB_FIELDS):
        flat = np.where(counts & np.isfinite(values), values, 0.0).reshape(-1)
        worst = int(np.argmax(flat)) if flat.size else 0
        if flat.size and flat[worst] > _SLACK:
            yield Violation(
                _token_place(view, record, name, worst),
                (f"{record.key.kind}.{name} is {flat[worst]:.6g}: a probability of {np.exp(flat[worst]):.4g}",),
            )


def _zero_filled(view: StepView) -> Iterable[Violation]:
    """A rollout's log probs that are exactly 0 on trained tokens while the trainer's are not.

    Where old log probs are the rollout's own, the trainer's are those of its first pass.
    """
    seen, old_are_of_rollout = False, _old_are_of_rollout(view)
    for sample in view.samples.values():
        found = None if old_are_of_rollout else sample.trained("rollout_log_probs", "old_log_probs")
        if found is None and (_is_of_first_pass(sample) or not old_are_of_rollout):
            found = sample.trained("rollout_log_probs", "log_probs")
        if found is None:
            continue
        seen = True
        rollout, trainer, positions = found
        bad = np.flatnonzero((rollout == 0) & (np.abs(trainer) > 1e-2))
        if bad.size:
            yield Violation(
                f"step {view.step} sample {sample.sample} token {int(positions[bad[0]])}",
                (f"trained tokens with a rollout log prob of 0: {bad.size}; the trainer has {trainer[bad[0]]:.4g}",),
            )
    if not seen:
        raise NotApplicable("no rollout and trainer log probs of the same samples")


def _rollout_matches_trainer(view: StepView) -> Iterable[Violation]:
    gaps, places = [], []
    for sample in view.samples.values():
        found = sample.trained("rollout_log_probs", "old_log_probs")
        if found is not None and found[0].size:
            rollout, trainer, positions = found
            finite = np.isfinite(rollout) & np.isfinite(trainer)
            gap = np.abs(rollout - trainer)[finite]
            if gap.size:
                gaps.append(gap)
                worst = int(np.argmax(gap))
                places.append((float(gap[worst]), sample.sample, int(positions[finite][worst])))
    if not gaps:
        raise NotApplicable("no rollout log probs and old_log_probs of the same samples")
    every = np.concatenate(gaps)
    mean, (worst_gap, sample_id, token) = float(every.mean()), max(places)
    if mean > _MISMATCH_MEAN or worst_gap > _MISMATCH_TOKEN:
        yield Violation(
            f"step {view.step} sample {sample_id} token {token}",
            (
                f"mean |rollout - trainer| {mean:.4g} over {every.size} tokens (bound {_MISMATCH_MEAN})",
                f"worst token {worst_gap:.4g} (bound {_MISMATCH_TOKEN}); mean exp|diff| {np.exp(every).mean():.4g}",
            ),
        )


def _first_ratio_is_one(view: StepView) -> Iterable[Violation]:
    """In the first pass over a batch the policy has not changed: its log probs are the old ones.

    Not where these are the engine's, of older weights, which is what the ratio is to correct.
    """
    seen = False
    of_rollout = _old_are_of_rollout(view)
    older = {sample for sample, (made, current) in view.versions.items() if of_rollout and made < current}
    worst: tuple[float, str, int] | None = None
    gaps = []
    for sample in view.samples.values():
        found = sample.trained("log_probs", "old_log_probs")
        if found is None or not _is_of_first_pass(sample) or not found[0].size or sample.sample in older:
            continue
        seen = True
        new, old, positions = found
        gap = np.abs(new - old)
        gaps.append(gap)
        place = int(np.nanargmax(gap)) if np.isfinite(gap).any() else 0
        if worst is None or gap[place] > worst[0]:
            worst = (float(gap[place]), str(sample.sample), int(positions[place]))
    if not seen:
        why = (
            "old log probs are the engine's, of older weights"
            if older
            else "no log_probs and old_log_probs of the same samples"
        )
        raise NotApplicable(why)
    bound = _ON_POLICY
    if of_rollout and np.concatenate(gaps).mean() <= _MISMATCH_MEAN:
        bound = _MISMATCH_TOKEN
    if worst is not None and worst[0] > bound:
        gap_text = f"|log_probs - old_log_probs| is {worst[0]:.4g}: a ratio of {np.exp(worst[0]):.4g} instead of 1"
        yield Violation(f"step {view.step} sample {worst[1]} token {worst[2]}", (gap_text,))


def _is_of_first_pass(sample: SampleTokens) -> bool:
    """Whether the sample's log probs were computed before any update of the step."""
    log_probs = sample.quantities.get("log_probs")
    return log_probs is not None and not log_probs.source.epoch and not log_probs.source.mini_batch


def _old_are_of_rollout(view: StepView) -> bool:
    """Whether old log probs are the engine's, bit for bit: then the ratio measures how the engine rounds, too."""
    pairs = [sample.trained("rollout_log_probs", "old_log_probs") for sample in view.samples.values()]
    known = [found for found in pairs if found is not None and found[0].size]
    return bool(known) and all(np.array_equal(found[0], found[1]) for found in known)


def _entropy_not_negative(view: StepView) -> Iterable[Violation]:
    for record, name, values, counts in _recorded(view, {"forward_data": ("entropy",)}):
        bad = np.flatnonzero(counts & ~(values >= -_SLACK))
        if bad.size:
            value = values.reshape(-1)[bad[0]]
            yield Violation(_token_place(view, record, name, int(bad[0])), (f"entropy is {value:.4g}",))


CHECKS = (
    Check(
        "log-probs-finite",
        "log probs are finite",
        "a NaN or Inf log prob makes the loss NaN: overflow in low precision, a token of probability 0, or padding",
        ("look at the sample: rldbg show RUN --sample GROUP/RUN", "compute log-softmax in float32"),
        _finite,
    ),
    Check(
        "log-probs-not-positive",
        "log probs are at most 0",
        "a log prob above 0 is not a log prob: unnormalised logits, or a different quantity under this name",
        ("check where the field is recorded and that log-softmax runs over the vocabulary",),
        _not_positive,
    ),
    Check(
        "rollout-log-probs-present",
        "rollout log probs are not zero-filled",
        "missing log probs of the engine were replaced by 0, which means a probability of 1",
        ("ask the engine for log probs of every token; keep NaN where there is none",),
        _zero_filled,
    ),
    Check(
        "rollout-matches-trainer",
        "rollout and trainer agree on log probs",
        "engine and trainer compute different probabilities for the same tokens: weights not synced, a different "
        "temperature or sampling filter, a shift by one position, or low precision",
        ("compare one sample token by token: rldbg show RUN --sample GROUP/RUN", "check weight sync and temperature"),
        _rollout_matches_trainer,
    ),
    Check(
        "first-ratio-is-one",
        "the first pass is on policy",
        "before the first optimizer step the policy is the old policy; if not, old log probs come from different "
        "weights, a different temperature, dropout, or different tokens",
        ("check that both passes use the same temperature, mask and mode (eval)",),
        _first_ratio_is_one,
    ),
    Check(
        "entropy-not-negative",
        "entropy is at least 0",
        "an entropy below 0 or NaN was computed from something other than probabilities",
        ("check the entropy computation in low precision",),
        _entropy_not_negative,
        Severity.WARNING,
    ),
)
