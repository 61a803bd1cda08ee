"""How a side reduces one value per token to one number per pass, inferred from the numbers rule by rule.

A rule is a statistic of the pass and a factor that is the same in all passes of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rldbg.analysis.explain.evidence import Recomputed, fit_factor, largest
from rldbg.analysis.explain.passes import MicroPass, SideStep
from rldbg.analysis.explain.subsets import turn_of


@dataclass(frozen=True, slots=True)
class MiniBatchTotals:
    """What a mini-batch holds over all ranks and micro-batches."""

    tokens: float
    sequences: float
    rank_tokens: dict[int, float]
    rank_sequences: dict[int, float]


@dataclass(frozen=True, slots=True)
class AggregationRule:
    """`factor` times the statistic of that name."""

    statistic: str
    factor: float

    def __str__(self) -> str:
        if self.statistic == "the token sum" and abs(self.factor - 1) > 1e-3:
            return f"the token sum divided by a fixed {1 / self.factor:.6g}"
        return self.statistic if abs(self.factor - 1) <= 1e-3 else f"{self.factor:.4g} times {self.statistic}"


def mask_of(item: MicroPass) -> np.ndarray | None:
    found = item.array("is_loss_debug", "effective_valid")
    if found is None:
        found = item.array("forward_data", "response_mask")
    return None if found is None else found != 0


def totals_of(side: SideStep) -> dict[tuple[int, int], MiniBatchTotals]:
    """By optimizer step."""
    masks: dict[tuple[int, int], list[tuple[int, np.ndarray]]] = defaultdict(list)
    for item in side.every:
        mask = mask_of(item)
        if mask is not None:
            masks[item.update].append((item.rank, mask))
    found = {}
    for update, parts in masks.items():
        by_rank: dict[int, float] = defaultdict(float)
        rows: dict[int, float] = defaultdict(float)
        for rank, mask in parts:
            by_rank[rank] += float(mask.sum())
            rows[rank] += float(mask.any(1).sum())
        found[update] = MiniBatchTotals(sum(by_rank.values()), sum(rows.values()), dict(by_rank), dict(rows))
    return found


class PassStatistics:
    """One number of a pass by each rule in use: a weighted sum of its values, divided."""

    def __init__(self, mask: np.ndarray, totals: MiniBatchTotals, rank: int) -> None:
        lengths = mask.sum(1)
        self.weights = {
            "sum": mask.astype(np.float64),
            "means": mask / np.maximum(lengths, 1)[:, None],
            "turns": _weights_of_turns(mask),
            "whole": np.ones(mask.shape),
        }
        self.rules = dict(_rules(mask.size, lengths, totals, rank))

    def number(self, rule: str, values: np.ndarray) -> float:
        basis, divisor = self.rules[rule]
        return self._sum(basis, values) / divisor

    def numbers(self, values: np.ndarray) -> dict[str, float]:
        sums = {basis: self._sum(basis, values) for basis in self.weights}
        return {rule: sums[basis] / divisor for rule, (basis, divisor) in self.rules.items()}

    def _sum(self, basis: str, values: np.ndarray) -> float:
        weights = self.weights[basis]
        return float((np.where(weights, values, 0.0) * weights).sum())


def _rules(
    size: int, lengths: np.ndarray, totals: MiniBatchTotals, rank: int
) -> Iterator[tuple[str, tuple[str, float]]]:
    """The name of each rule, which sum it takes, and what that is divided by."""
    rows, tokens = max(int(np.count_nonzero(lengths)), 1), max(int(lengths.sum()), 1)
    all_tokens, all_rows = max(totals.tokens, 1), max(totals.sequences, 1)
    yield "the mean over the mini-batch's tokens", ("sum", all_tokens)
    yield "the mean over the mini-batch's sequences of their token means", ("means", all_rows)
    yield "the mean over the mini-batch's sequences of their token sums", ("sum", all_rows)
    yield "the token mean of each micro-batch", ("sum", tokens)
    yield "the mean over each micro-batch's sequences of their token means", ("means", rows)
    yield "the mean over each micro-batch's sequences of their token sums", ("sum", rows)
    yield "the mean over all columns of each micro-batch, padding included", ("sum", size)
    yield "the mean over each rank's tokens", ("sum", max(totals.rank_tokens.get(rank, 1), 1))
    yield "the token sum", ("sum", 1)
    yield "the sum of the sequences' token means", ("means", 1)
    padded = "with the values at padding and untrained tokens"
    yield f"the sum over all columns, {padded}", ("whole", 1)
    yield f"the sum over all columns, {padded}, divided by the mini-batch's tokens", ("whole", all_tokens)
    yield f"the mean over all columns, {padded}", ("whole", size)
    yield f"the sum over all columns, {padded}, divided by each micro-batch's tokens", ("whole", tokens)
    yield "the mean over the mini-batch's sequences of their turns' token means", ("turns", all_rows)
    first = min(totals.rank_tokens, default=0)
    yield "the token sum divided by the first rank's tokens", ("sum", max(totals.rank_tokens.get(first, 1), 1))
    yield (
        "the mean over each rank's sequences of their token means",
        ("means", max(totals.rank_sequences.get(rank, 1), 1)),
    )


def _weights_of_turns(mask: np.ndarray) -> np.ndarray:
    """By which a row's values give the mean over its runs of trained tokens of each run's mean."""
    turns = turn_of(mask)
    most = int(turns.max(initial=0)) + 1
    runs = turns + most * np.arange(len(mask))[:, None]
    weights: np.ndarray = (
        mask / np.bincount(runs.ravel(), minlength=1)[runs] / np.maximum(turns.max(1, initial=0), 1)[:, None]
    )
    return weights


def rules_of(side: SideStep, recorded: str, kind: str, quantity: str) -> list[AggregationRule]:
    """The rules that give the recorded number of every pass from the recorded quantity; the simplest first."""
    passes = [
        (item, values, mask, number)
        for item in side.micros
        if (values := item.array(kind, quantity)) is not None
        and (mask := mask_of(item)) is not None
        and mask.shape == values.shape
        and (number := item.number("loss", recorded)) is not None
    ]
    return fitting_rules(side, passes)


def by_rule(
    a: SideStep, b: SideStep, rule: AggregationRule, recorded: str, kind: str, quantity: str
) -> Recomputed | None:
    """A's values reduced by B's rule, beside both recorded numbers, pass by pass."""
    totals = totals_of(a)
    others = {(item.update, item.rank, item.micro): item.number("loss", recorded) for item in b.micros}
    rows = []
    for item in a.micros:
        values, mask = item.array(kind, quantity), mask_of(item)
        if values is None or mask is None or mask.shape != values.shape:
            return None
        made = rule.factor * PassStatistics(mask, totals[item.update], item.rank).number(rule.statistic, values)
        rows.append((item.number("loss", recorded), others.get((item.update, item.rank, item.micro)), made))
    return Recomputed.of_rows(rows)


Pass = tuple[MicroPass, np.ndarray, np.ndarray, float]


def fitting_rules(side: SideStep, passes: Sequence[Pass]) -> list[AggregationRule]:
    """The rules by which each pass's values become its number, all with one factor."""
    if len(passes) < 2:
        return []
    totals = totals_of(side)
    table: dict[str, list[float]] = defaultdict(list)
    for item, values, mask, _ in passes:
        for name, value in PassStatistics(mask, totals[item.update], item.rank).numbers(values).items():
            table[name].append(value)
    numbers = np.asarray([number for *_, number in passes])
    if largest(numbers) == 0 or not np.isfinite(numbers).all():
        return []
    # Numbers that rounding may be a hundredth of, such as the KL of a policy that has hardly moved, fit any rule; of
    # others a factor is known to as many digits as rounding leaves.
    slack = 1e-5 * largest(numbers) + 2e-7
    if slack > 0.01 * largest(numbers):
        return []
    digits = int(-np.log10(slack / largest(numbers)))
    found = []
    for name, column in table.items():
        statistic = np.asarray(column)
        factor = fit_factor(statistic, numbers)
        if largest(numbers - factor * statistic) <= slack and factor != 0:
            found.append(AggregationRule(name, float(f"{factor:.{digits}g}")))
    return sorted(found, key=lambda rule: abs(rule.factor - 1) > 1e-3)
