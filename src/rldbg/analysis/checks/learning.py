"""Checks on advantages and losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.algorithms import grpo_advantages
from rldbg.analysis.checks.base import Check, NotApplicable, StepView, Violation
from rldbg.analysis.checks.whole_losses import losses_follow_tokens
from rldbg.analysis.normalisation import guarded, normalisations
from rldbg.core import SampleId
from rldbg.recording import Record

_ADVANTAGE_SLACK = 1e-3
_LOSS_SLACK = 1e-4
_REWARD_CLIPS = ((0.0, 1.0), (-1.0, 1.0), (-2.0, 2.0), (-3.0, 3.0), (-5.0, 5.0), (-10.0, 10.0))
_TWO_SIDED = "two-sided ratio"


def _advantages_follow_rewards(view: StepView) -> Iterable[Violation]:
    known = [name for name in view.advantages if np.isfinite(view.rewards.get(name, np.nan))]
    names = [name for name in known if not view.is_earlier(name)]
    if len(names) < 2:
        raise NotApplicable("no advantages and rewards of the same samples")
    if view.has_token_advantages:
        raise NotApplicable("advantages differ from token to token: rewards alone do not make them")
    have = np.asarray([view.advantages[name] for name in names], dtype=np.float64)
    best: tuple[float, str, int] | None = None
    for how, expected in (*_expected(names, view), *_running_baseline(names, have, view)):
        gap = np.abs(have - expected)
        worst = int(np.nanargmax(np.where(np.isnan(gap), np.inf, gap)))
        if gap[worst] <= _ADVANTAGE_SLACK * max(1.0, float(np.abs(expected).max())):
            return
        if best is None or gap[worst] < best[0]:
            best = (float(gap[worst]), how, worst)
    assert best is not None
    if view.made_up_ids:
        raise NotApplicable("advantages that fit no normalisation by equal prompts, and groups were not recorded")
    gap_text, how, worst = f"{best[0]:.4g}", best[1], best[2]
    yield Violation(
        f"step {view.step} sample {names[worst]}",
        (
            f"recorded advantage {have[worst]:.6g}, reward {view.rewards[names[worst]]:.6g}",
            f"the nearest known normalisation ({how}) is {gap_text} away",
            *_fitted(names, have, view),
        ),
    )


def _running_baseline(
    names: Sequence[SampleId], advantages: np.ndarray, view: StepView
) -> Iterator[tuple[str, np.ndarray]]:
    """Rewards less one number for all samples, times another: a mean and a deviation of earlier steps."""
    rewards = np.asarray([view.rewards[name] for name in names], dtype=np.float64)
    if len(np.unique(rewards)) > 2 and np.isfinite(advantages).all():
        slope, level = np.polyfit(rewards, advantages, 1)
        if slope > 0:
            yield "one baseline for all samples", slope * rewards + level


def _fitted(names: Sequence[SampleId], advantages: np.ndarray, view: StepView) -> Iterator[str]:
    """A guard against division by 0 that is too large to be one, if that explains the advantages."""
    rewards = np.asarray([view.rewards[name] for name in names], dtype=np.float64)
    found = guarded(advantages, rewards, _group_numbers(names), _ADVANTAGE_SLACK)
    if found is not None:
        yield f"they fit this one: {found}"


def _group_numbers(names: Sequence[SampleId]) -> np.ndarray:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(sample.group_id for sample in names))}
    return np.asarray([numbers[sample.group_id] for sample in names])


def _expected(names: Sequence[SampleId], view: StepView) -> Iterator[tuple[str, np.ndarray]]:
    """What each rule gives the samples: by these alone, and with those that have a reward and were never trained on."""
    others = [name for name, reward in view.rewards.items() if name not in view.advantages and np.isfinite(reward)]
    for among in (names, [*names, *others]) if others else (names,):
        groups = _group_numbers(among)
        rewards = np.asarray([view.rewards[name] for name in among], dtype=np.float64)
        for how, values in _ways(rewards, groups):
            yield how, values[: len(names)]
        functions = _normalised_by_function([view.extras.get(name, {}) for name in among], groups)
        if functions is not None:
            for how, values in normalisations(functions, groups):
                yield f"{how}, of each function's rewards by group", values[: len(names)]


def _normalised_by_function(extras: Sequence[Mapping[str, Any]], groups: np.ndarray) -> np.ndarray | None:
    """The weighted sum of the rewards of each function, normalised by group; what a function did not score counts 0."""
    weights = extras[0].get("reward_weights") or {}
    if len(weights) < 2 or not all(weights.keys() == extra.get("rewards", {}).keys() for extra in extras):
        return None
    total = np.zeros(len(extras))
    for name, weight in weights.items():
        given = np.asarray([extra["rewards"][name] for extra in extras], dtype=np.float64)
        known = np.isfinite(given)
        total[known] += weight * grpo_advantages(given[known], groups[known], epsilon=1e-4)
    return total


def _ways(rewards: np.ndarray, groups: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Every normalisation of the rewards, then of rewards clipped to the bounds in use."""
    yield from normalisations(rewards, groups)
    centred = grpo_advantages(rewards, groups, scale_by_std=False)
    # A leave-one-out baseline differs from the group's mean by a factor, which the division removes.
    yield "leave one out, then whole batch", centred / (centred.std(ddof=1) + 1e-4)
    for low, high in _REWARD_CLIPS:
        clipped = np.clip(rewards, low, high)
        if not np.array_equal(clipped, rewards):
            for how, expected in normalisations(clipped, groups):
                yield f"{how}, of rewards clipped to [{low:g}, {high:g}]", expected


def _loss_follows_inputs(view: StepView) -> Iterable[Violation]:
    """is_loss_debug: the ratio is exp(log_probs - old_log_probs), the element loss -ratio * advantage or clipped.

    Without it, the loss of each micro-batch is compared with its log probs, advantages and mask. A framework may say
    that a token's loss is something else (extra_info.form of its loss).
    """
    forms = {_form(record) for record in view.side.records("loss", view.step)}
    if other := next(iter(sorted(forms - {"", "ratio", _TWO_SIDED})), ""):
        raise NotApplicable(f"a token's loss is not its advantage times its ratio: {other}")
    needed = ("log_probs", "old_log_probs", "advantages", "elementwise_loss")
    seen, lacking = False, ""
    for record in view.side.records("is_loss_debug", view.step):
        missing = [name for name in needed if name not in record.fields]
        if missing:
            lacking = f"the is_loss_debug records have no {' and no '.join(missing)}"
            continue
        seen = True
        yield from _loss_violations(view, record, two_sided=_TWO_SIDED in forms)
    if not seen:
        yield from losses_follow_tokens(view, lacking)


def _second_clip(
    ratio: np.ndarray, loss: np.ndarray, advantages: np.ndarray, valid: np.ndarray, *, is_stated: bool
) -> float:
    """Where a two-sided clip holds large ratios of negative advantages: at the largest that counted, if several did.

    Of a framework that does not say so, one token is not evidence of such a clip; and one at the bound of the first
    clip is that clip, applied where it must not be.
    """
    bound, held = _held_at(ratio, loss, advantages, valid & (advantages < 0))
    first, counts = _held_at(ratio, loss, advantages, valid & (advantages > 0))
    is_first = counts > 0 and abs(bound - first) <= _LOSS_SLACK * first
    if bound <= 1 or held < (1 if is_stated else 2) or (is_first and not is_stated):
        return np.inf
    return bound


def _held_at(ratio: np.ndarray, loss: np.ndarray, advantages: np.ndarray, among: np.ndarray) -> tuple[float, int]:
    """The largest ratio that counted in the losses of some tokens, and how many with a larger one are held there."""
    used = (-loss / np.where(among, advantages, 1.0))[among]
    bound = float(used.max(initial=0.0))
    held = (used > bound * (1 - _LOSS_SLACK)) & (ratio[among] > bound * (1 + _LOSS_SLACK))
    return bound, int(held.sum())


def _form(record: Record) -> str:
    info = record.fields.get("extra_info")
    return str(info.get("form", "")) if isinstance(info, Mapping) else ""


def _loss_violations(view: StepView, record: Record, *, two_sided: bool) -> Iterator[Violation]:
    new, old, advantages, loss = (
        record.array(name).astype(np.float64)
        for name in ("log_probs", "old_log_probs", "advantages", "elementwise_loss")
    )
    valid = record.array("effective_valid") != 0 if "effective_valid" in record.fields else np.ones(new.shape, bool)
    expected = np.exp(new - old)
    ratio = record.array("prob_ratio").astype(np.float64) if "prob_ratio" in record.fields else expected
    # Rounding grows with the factors: a small error times a large advantage is still rounding.
    size = np.maximum(np.abs(ratio * advantages), 1.0)
    bound = _second_clip(ratio, loss, advantages, valid, is_stated=two_sided)
    counted = np.where(advantages < 0, np.minimum(ratio, bound), ratio)
    for title, gap in (
        ("prob_ratio is not exp(log_probs - old_log_probs)", np.abs(ratio - expected) / np.maximum(expected, 1.0)),
        # A clip can only make the loss larger than the unclipped one, and never changes its sign.
        ("elementwise_loss is below -ratio * advantage", (-counted * advantages - loss) / size),
        (
            "elementwise_loss does not have the sign of -advantage",
            np.where(loss * -advantages < 0, np.abs(loss) / size, 0.0),
        ),
    ):
        bad = np.argwhere(valid & ~(gap <= _LOSS_SLACK))
        if len(bad):
            place = tuple(int(part) for part in bad[0])
            sample = f" sample {record.samples[place[0]]}" if record.samples else f" row {place[0]}"
            where = f"step {view.step} rank {record.key.rank} micro {record.key.micro}{sample} token {place[-1]}"
            yield Violation(where, (title, f"off by {float(gap[place]):.4g}, at {len(bad)} tokens"))


def _losses_finite(view: StepView) -> Iterable[Violation]:
    seen = False
    for record in (item for kind in ("loss", "value_loss") for item in view.side.records(kind, view.step)):
        seen = True
        for name in ("loss", "pg_loss", "entropy_loss", "kl_loss"):
            value = record.fields.get(name)
            if value is not None and not np.all(np.isfinite(np.asarray(value, dtype=np.float64))):
                yield Violation(
                    f"step {view.step} rank {record.key.rank} micro {record.key.micro}", (f"{name} is {value}",)
                )
    if not seen:
        raise NotApplicable("no losses")


CHECKS = (
    Check(
        "advantages-follow-rewards",
        "advantages follow from the recorded rewards",
        "recomputing advantages from the rewards gives different numbers: mixed-up groups, rewards changed in between, "
        "or the normalisation is not a known one",
        ("compare the advantages of one group by hand: rldbg show RUN --step N --sample GROUP/RUN",),
        _advantages_follow_rewards,
    ),
    Check(
        "loss-follows-inputs",
        "the loss follows from its recorded inputs",
        "recomputing ratio and loss from the recorded inputs gives different numbers",
        ("look at the named token: the factor that is off shows which line of the loss is wrong",),
        _loss_follows_inputs,
    ),
    Check(
        "losses-finite",
        "losses are finite",
        "a NaN or Inf loss destroys the parameters at the next optimizer step",
        ("find the first NaN upstream: rldbg check RUN --only log-probs-finite",),
        _losses_finite,
    ),
)
