"""Recorded losses with the tokens they are made of, and the loss that a rule gives them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import numpy as np

from rldbg.analysis.explain.advantage_rules import Scored, common_normalisations, groupings, shapes
from rldbg.analysis.explain.evidence import largest
from rldbg.analysis.explain.passes import MicroPass, SideStep
from rldbg.analysis.explain.subsets import turn_of
from rldbg.analysis.normalisation import normalisations
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens
from rldbg.core import SampleId

_STEPS = 6
# Many rules of few steps.
_WIDE_STEPS = 2
_BOUNDS = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0)


class LossRule(NamedTuple):
    """One combination; `clip` is how far below and above 1 the ratio may go, None for no limit."""

    advantages: str
    form: str
    clip: tuple[float | None, float | None]
    reduction: str
    entropy: float
    kl: float


class LossPass(NamedTuple):
    """One recorded loss with the trained tokens it is made of, one after another; `starts` is where each row begins."""

    number: float
    starts: np.ndarray
    ratio: np.ndarray
    log_probs: np.ndarray
    entropy: np.ndarray | None
    kl: np.ndarray | None
    # One value per token, by rule.
    advantages: dict[str, np.ndarray]
    # For each token: its answer's number, whether that is the sample's last, its place in the answer and from its end.
    turn: np.ndarray
    is_last: np.ndarray
    place: np.ndarray
    to_end: np.ndarray
    uncertainty: np.ndarray | None
    # By how much the policy's log prob is above the engine's.
    above_rollout: np.ndarray | None
    rank: int = 0
    # Log prob of the policy minus that of the reference.
    above_reference: np.ndarray | None = None
    # Of the whole mini-batch: trained tokens, sequences and passes; of its rank's part: tokens and passes; the ranks.
    whole: tuple[int, int, int, int, int, int] = (1, 1, 1, 1, 1, 1)
    # Tokens from the first trained one of each sample on, whether trained or not, and all tokens: of this pass and of
    # the whole mini-batch.
    spans: tuple[int, int] = (1, 1)
    whole_spans: tuple[int, int] = (1, 1)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(np.append(self.starts, len(self.ratio)))


def _of_sequences(item: LossPass, mean: bool) -> np.ndarray:
    """One ratio for all tokens of a sequence: the product of its tokens' ratios, or their geometric mean."""
    logs = np.add.reduceat(np.log(item.ratio), item.starts)
    made: np.ndarray = np.exp(np.repeat(logs / item.lengths if mean else logs, item.lengths))
    return made


LARGER = "ratio, clipped or not, whichever is larger"
# Each form of a ratio, with what it is for every token.
RATIOS: dict[str, Callable[[LossPass], np.ndarray]] = {
    "ratio": lambda item: item.ratio,
    "ratio of its sequence (geometric mean)": lambda item: _of_sequences(item, mean=True),
    "ratio of its sequence (product)": lambda item: _of_sequences(item, mean=False),
    LARGER: lambda item: item.ratio,
    "inverse of the ratio": lambda item: 1 / item.ratio,
}


def token_losses(item: LossPass, rule: LossRule) -> np.ndarray:
    advantage = item.advantages[rule.advantages]
    if rule.form not in RATIOS:
        return -advantage * (item.log_probs if rule.form == "log prob" else 1.0)
    low, high = rule.clip
    ratio = RATIOS[rule.form](item)
    bounded = np.clip(ratio, 0.0 if low is None else 1 - low, np.inf if high is None else 1 + high)
    choose = np.maximum if rule.form == LARGER else np.minimum
    losses: np.ndarray = -choose(ratio * advantage, bounded * advantage)
    return losses


SUM = "the sum over tokens"
# Each way to make one number of all tokens: what the sum over a sequence's tokens counts, for each sequence.
Weights = Callable[[LossPass], np.ndarray]


def _each(item: LossPass, weight: float) -> np.ndarray:
    return np.full(len(item.starts), weight)


# They are others' equals where there is one rank.
OF_RANKS: dict[str, Weights] = {
    "the mean over the mini-batch's tokens, times the number of ranks": lambda item: _each(
        item, item.whole[5] / item.whole[0]
    ),
    "the mean over the tokens of its rank's part of the mini-batch": lambda item: _each(item, 1 / item.whole[3]),
    "the mean over the tokens of its rank's part, divided by the number of ranks": lambda item: _each(
        item, 1 / (item.whole[3] * item.whole[5])
    ),
    "the token mean of each micro-batch, divided by their number on the rank": lambda item: _each(
        item, 1 / (len(item.ratio) * item.whole[4])
    ),
}
REDUCTIONS: dict[str, Weights] = {
    "the mean over tokens": lambda item: _each(item, 1 / len(item.ratio)),
    "the mean over sequences of their token means": lambda item: 1 / (item.lengths * len(item.starts)),
    "the mean over sequences of their token sums": lambda item: _each(item, 1 / len(item.starts)),
    SUM: lambda item: _each(item, 1.0),
    "the mean over the mini-batch's tokens": lambda item: _each(item, 1 / item.whole[0]),
    "the mean over the mini-batch's sequences of their token means": lambda item: 1 / (item.lengths * item.whole[1]),
    "the token mean of each micro-batch, divided by their number": lambda item: _each(
        item, 1 / (len(item.ratio) * item.whole[2])
    ),
    "the sum over tokens divided by sequences times the longest": lambda item: _each(
        item, 1 / (len(item.starts) * int(item.lengths.max()))
    ),
    "the token sum divided by the mini-batch's tokens after prompts, trained or not": lambda item: _each(
        item, 1 / item.whole_spans[0]
    ),
    "the token sum divided by all of the mini-batch's tokens, prompts included": lambda item: _each(
        item, 1 / item.whole_spans[1]
    ),
    "the token sum divided by the micro-batch's tokens after prompts, trained or not": lambda item: _each(
        item, 1 / item.spans[0]
    ),
    "the token sum divided by all of the micro-batch's tokens, prompts included": lambda item: _each(
        item, 1 / item.spans[1]
    ),
    "the mean over the mini-batch's tokens, divided by the number of micro-batches": lambda item: _each(
        item, 1 / (item.whole[0] * item.whole[2])
    ),
    **OF_RANKS,
}


class FixedDivisor(str):
    """The reduction that divides the token sum of every pass by one number."""

    __slots__ = ("number",)
    number: float

    def __new__(cls, number: float) -> Self:
        self = super().__new__(cls, f"the token sum divided by a fixed {number:.10g}")
        self.number = number
        return self


def _weights_of(reduction: str, item: LossPass) -> np.ndarray:
    if isinstance(reduction, FixedDivisor):
        return _each(item, 1 / reduction.number)
    return REDUCTIONS[reduction](item)


class LossPasses:
    """All passes of a side, to try a rule on all of them at once; not empty."""

    def __init__(self, passes: list[LossPass]) -> None:
        self.each = passes
        self.numbers = np.asarray([item.number for item in passes])
        self.noise = 1e-5 * largest(self.numbers) + 2e-6
        self.tokens = _joined(passes)
        # Where each pass begins among the sequences of all of them.
        self._begins = np.cumsum([0, *(len(item.starts) for item in passes[:-1])])
        self._weights: dict[str, np.ndarray] = {}

    @property
    def differ_in_size(self) -> bool:
        """Whether passes and mini-batches have different numbers of tokens: else each divisor is a fixed number."""
        return min(len({item.whole[0] for item in self.each}), len({len(item.ratio) for item in self.each})) > 1

    def by(self, rule: LossRule, weights: np.ndarray | float = 1.0) -> np.ndarray:
        """Each pass's loss by a rule; `weights` is one for each token."""
        losses = self.policy(rule, weights)
        for term, weight in (("entropy", rule.entropy), ("kl", rule.kl)):
            column = self.term(term, rule.reduction, weights)
            losses = losses if column is None else losses + weight * column
        return losses

    def policy(self, rule: LossRule, weights: np.ndarray | float = 1.0) -> np.ndarray:
        """Without further terms; `weights` is one for each token."""
        return self.reduced(weights * token_losses(self.tokens, rule), rule.reduction)

    def term(self, name: str, reduction: str, weights: np.ndarray | float = 1.0) -> np.ndarray | None:
        """A further term without its coefficient; None where a pass lacks it."""
        columns = [values for item in self.each if (values := getattr(item, name)) is not None]
        return self.reduced(weights * np.concatenate(columns), reduction) if len(columns) == len(self.each) else None

    def reduced(self, values: np.ndarray, reduction: str) -> np.ndarray:
        """One number of each pass, of the values of all tokens."""
        return self.of_sums(self.sums(values), reduction)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """The sum over each sequence."""
        sums: np.ndarray = np.add.reduceat(values, self.tokens.starts, axis=-1)
        return sums

    def of_sums(self, sums: np.ndarray, reduction: str) -> np.ndarray:
        if reduction not in self._weights:
            self._weights[reduction] = np.concatenate([_weights_of(reduction, item) for item in self.each])
        numbers: np.ndarray = np.add.reduceat(sums * self._weights[reduction], self._begins, axis=-1)
        return numbers


def _joined(passes: list[LossPass]) -> LossPass:
    """The ratios, log probs and advantages of all passes as those of one."""
    begins = np.cumsum([0, *(len(item.ratio) for item in passes[:-1])])
    names = [name for name in passes[0].advantages if all(name in item.advantages for item in passes)]
    return passes[0]._replace(
        starts=np.concatenate([item.starts + begin for item, begin in zip(passes, begins, strict=True)]),
        advantages={name: np.concatenate([item.advantages[name] for item in passes]) for name in names},
        ratio=np.concatenate([item.ratio for item in passes]),
        log_probs=np.concatenate([item.log_probs for item in passes]),
    )


def _passes(side: SideStep, *, wide: bool) -> Iterator[LossPass]:
    by_update: dict[tuple[int, int], list[LossPass]] = defaultdict(list)
    rules = _advantages(side, wide=wide)
    for item in side.micros:
        # A policy loss that was recorded by itself has no further terms.
        number = item.number("loss", "pg_loss")
        number, is_alone = (item.number("loss", "loss"), False) if number is None else (number, True)
        made = None if number is None else _pass(side, item, number, rules, is_alone=is_alone)
        if made is not None:
            by_update[item.update].append(made)
    for passes in by_update.values():
        whole = sum(len(item.ratio) for item in passes), sum(len(item.starts) for item in passes), len(passes)
        ranks = {item.rank for item in passes}
        spans = sum(item.spans[0] for item in passes), sum(item.spans[1] for item in passes)
        for found in passes:
            mine = [other for other in passes if other.rank == found.rank]
            of_rank = sum(len(other.ratio) for other in mine), len(mine), len(ranks)
            yield found._replace(whole=(*whole, *of_rank), whole_spans=spans)


def _pass(
    side: SideStep, item: MicroPass, number: float, rules: dict[str, dict[SampleId, float]], *, is_alone: bool
) -> LossPass | None:
    record = item.records.get("forward_data")
    if record is None or not record.samples:
        return None
    known = side.samples_at(item.update)
    rows = [known[sample] for sample in record.samples if sample in known and np.any(known[sample].loss_mask)]
    new, old = _column(rows, "log_probs"), _column(rows, "old_log_probs")
    lengths = [int(np.count_nonzero(row.loss_mask)) for row in rows]
    if new is None or old is None or len(new) != len(old) or sum(lengths) != len(new):
        return None
    reference, entropy = _column(rows, "ref_log_probs"), _column(rows, "entropy")
    rollout = _column(rows, "rollout_log_probs")
    turn, is_last, place, to_end = (np.concatenate(column) for column in zip(*map(_places, rows), strict=True))
    gap = None if is_alone or reference is None or len(reference) != len(new) else reference - new
    return LossPass(
        number,
        np.cumsum([0, *lengths[:-1]]),
        np.exp(new - old),
        new,
        None if is_alone or entropy is None or len(entropy) != len(new) else -entropy,
        None if gap is None else np.expm1(gap) - gap,
        _of_tokens(rows, lengths, rules),
        turn,
        is_last,
        place,
        to_end,
        entropy if entropy is not None and len(entropy) == len(new) else None,
        None if rollout is None or len(rollout) != len(new) else old - rollout,
        record.key.rank,
        None if gap is None else -gap,
        spans=(sum(len(row.tokens) - row.prompt_length for row in rows), sum(len(row.tokens) for row in rows)),
    )


# Those that a critic's values are in follow from no reward alone.
RECORDED = "the recorded ones"


def _of_tokens(
    rows: list[SampleTokens], lengths: list[int], rules: dict[str, dict[SampleId, float]]
) -> dict[str, np.ndarray]:
    """The advantage of each token by each rule, and as recorded."""
    made = {name: np.repeat([of[row.sample] for row in rows], lengths) for name, of in rules.items()}
    recorded = _column(rows, "advantages")
    if recorded is not None and len(recorded) == sum(lengths):
        made[RECORDED] = recorded
    return made


def _places(row: SampleTokens) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each trained token: its answer's number, whether that is the last one, and its position from both ends of
    it."""
    numbers = turn_of(row.loss_mask)
    turns = numbers[numbers > 0]
    sizes = np.bincount(turns)[1:]
    place = np.concatenate([np.arange(size) for size in sizes])
    return turns, turns == turns.max(), place, np.repeat(sizes, sizes) - 1 - place


def _column(rows: list[SampleTokens], name: str) -> np.ndarray | None:
    """A quantity of all trained tokens; None when a row has none."""
    found = [row.trained(name) for row in rows]
    known = [values[0] for values in found if values is not None]
    return np.concatenate(known).astype(np.float64) if rows and len(known) == len(rows) else None


def _advantages(side: SideStep, *, wide: bool) -> dict[str, dict[SampleId, float]]:
    """Every rule's advantage of each sample of the step; `wide`, also over other samples and of shaped rewards."""
    samples = [sample for sample in side.samples.values() if sample.reward is not None]
    if len(samples) < 2 or len(samples) < len(side.samples):
        return {}
    rewards = np.asarray([sample.reward for sample in samples], dtype=np.float64)
    lengths = np.asarray([np.count_nonzero(sample.loss_mask) for sample in samples], dtype=np.float64)
    scored, own = Scored(samples, rewards, rewards), next(groupings(samples, side))[1]
    made = list(normalisations(rewards, own, lengths))
    if wide:
        for suffix, groups in list(groupings(samples, side))[1:]:
            made += [(rule + suffix, values) for rule, values in common_normalisations(rewards, groups)]
        for text, shaped in shapes(scored):
            made += [(f"{rule}, of rewards {text}", values) for rule, values in common_normalisations(shaped, own)]
        for rule, values in made[:2]:
            made += [(f"{rule}, without those below 0", np.maximum(values, 0))]
            made += [(f"{rule}, without their sign", np.abs(values))]
            made += [(f"{rule}, times the length", values * lengths)]
            made += [
                (f"{rule}, of the sample {'after' if by < 0 else 'before'}", np.roll(values, by)) for by in (1, -1)
            ]
            made += [(f"{rule}, clipped to [-{bound:g}, {bound:g}]", values.clip(-bound, bound)) for bound in _BOUNDS]
    return {
        name: {sample.sample: float(value) for sample, value in zip(samples, values, strict=True)}
        for name, values in made
    }


def loss_passes(side: Side, *, wide: bool = False) -> Iterator[LossPass]:
    for step in sorted(side.steps("loss"))[: _WIDE_STEPS if wide else _STEPS]:
        yield from _passes(SideStep(side, step), wide=wide)
