"""How a side reduces one value per token to one number per pass, inferred from the numbers rule by rule.

A rule is a statistic of the pass and a factor that is the same in all passes of the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rldbg.analysis.explain.evidence import fit_factor, largest
from rldbg.analysis.explain.passes import MicroPass, SideStep
from rldbg.analysis.explain.subsets import turn_of


@dataclass(frozen=True, slots=True)
class Totals:
    """What a mini-batch holds over all ranks and micro-batches."""

    tokens: float
    sequences: float
    rank_tokens: dict[int, float]
    rank_sequences: dict[int, float]


@dataclass(frozen=True, slots=True)
class Rule:
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


def totals_of(side: SideStep) -> dict[tuple[int, int], Totals]:
    """By optimizer step."""
    masks: dict[tuple[int, int], list[tuple[int, np.ndarray]]] = defaultdict(list)
    for item in side.micros:
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
        found[update] = Totals(sum(by_rank.values()), sum(rows.values()), dict(by_rank), dict(rows))
    return found


def statistics(values: np.ndarray, mask: np.ndarray, totals: Totals, rank: int) -> Iterator[tuple[str, float]]:
    """One number of a pass by each rule in use."""
    kept = np.where(mask, values, 0.0)
    lengths = mask.sum(1)
    rows, tokens = max(int(np.count_nonzero(lengths)), 1), max(int(lengths.sum()), 1)
    total, means = float(kept.sum()), float((kept.sum(1) / np.maximum(lengths, 1)).sum())
    yield "the mean over the mini-batch's tokens", total / max(totals.tokens, 1)
    yield "the mean over the mini-batch's sequences of their token means", means / max(totals.sequences, 1)
    yield "the mean over the mini-batch's sequences of their token sums", total / max(totals.sequences, 1)
    yield "the token mean of each micro-batch", total / tokens
    yield "the mean over each micro-batch's sequences of their token means", means / rows
    yield "the mean over each micro-batch's sequences of their token sums", total / rows
    yield "the mean over all columns of each micro-batch, padding included", total / mask.size
    yield "the mean over each rank's tokens", total / max(totals.rank_tokens.get(rank, 1), 1)
    yield "the token sum", total
    yield "the sum of the sequences' token means", means
    whole, padded = float(values.sum()), "with the values at padding and untrained tokens"
    yield f"the sum over all columns, {padded}", whole
    yield f"the sum over all columns, {padded}, divided by the mini-batch's tokens", whole / max(totals.tokens, 1)
    yield f"the mean over all columns, {padded}", whole / mask.size
    yield f"the sum over all columns, {padded}, divided by each micro-batch's tokens", whole / tokens
    turns = sum(_mean_of_turns(row, own) for row, own in zip(values, mask, strict=True))
    yield "the mean over the mini-batch's sequences of their turns' token means", turns / max(totals.sequences, 1)
    first = min(totals.rank_tokens, default=0)
    yield "the token sum divided by the first rank's tokens", total / max(totals.rank_tokens.get(first, 1), 1)
    yield "the mean over each rank's sequences of their token means", means / max(totals.rank_sequences.get(rank, 1), 1)


def _mean_of_turns(values: np.ndarray, mask: np.ndarray) -> float:
    """The mean over a row's runs of trained tokens of each run's mean."""
    turns = turn_of(mask)
    sums, counts = np.bincount(turns, np.where(mask, values, 0.0)), np.bincount(turns)
    return float((sums[1:] / counts[1:]).mean()) if len(counts) > 1 else 0.0


def rules_of(side: SideStep, recorded: str, kind: str, quantity: str) -> list[Rule]:
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


Pass = tuple[MicroPass, np.ndarray, np.ndarray, float]


def fitting_rules(side: SideStep, passes: Sequence[Pass]) -> list[Rule]:
    """The rules by which each pass's values become its number, all with one factor."""
    if len(passes) < 2:
        return []
    totals = totals_of(side)
    table: dict[str, list[float]] = defaultdict(list)
    for item, values, mask, _ in passes:
        for name, value in statistics(values, mask, totals[item.update], item.rank):
            table[name].append(value)
    numbers = np.asarray([number for *_, number in passes])
    if largest(numbers) == 0 or not np.isfinite(numbers).all():
        return []
    found = []
    for name, column in table.items():
        statistic = np.asarray(column)
        factor = fit_factor(statistic, numbers)
        if largest(numbers - factor * statistic) <= 1e-5 * largest(numbers) + 2e-7 and factor != 0:
            found.append(Rule(name, round(factor, 6) if abs(factor) > 0.01 else float(f"{factor:.5g}")))
    return sorted(found, key=lambda rule: abs(rule.factor - 1) > 1e-3)
