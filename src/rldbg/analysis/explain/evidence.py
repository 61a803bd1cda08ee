"""What hypotheses may look at: recorded numbers of one step, aligned. Never configuration, never a bug's name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rldbg.analysis.pairing import Block, pair_kind
from rldbg.analysis.samples import StepSamples, pair_samples
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens, read_tokens


@dataclass(frozen=True, slots=True)
class Explanation:
    """A hypothesis that accounts for a difference: with its parameters applied, `residual` of it is left.

    `noise` is what rounding alone may leave; `share` is how much of the difference it accounts for.
    """

    id: str
    explains: str
    residual: float
    noise: float
    parameters: dict[str, Any]
    share: float = 1.0

    @property
    def fits(self) -> bool:
        return bool(self.residual <= self.noise)

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "explains": self.explains,
            "residual": self.residual,
            "noise": self.noise,
            "parameters": self.parameters,
            "share": self.share,
        }


class Evidence:
    """Both sides at one optimizer step. Everything is read when first asked for."""

    def __init__(self, a: Side, b: Side, step: int, epoch: int = 0, mini_batch: int = 0) -> None:
        self.a, self.b, self.step, self.epoch, self.mini_batch = a, b, step, epoch, mini_batch

    @cached_property
    def _known(self) -> tuple[StepSamples, StepSamples]:
        return StepSamples.read(self.a, self.step), StepSamples.read(self.b, self.step)

    @cached_property
    def samples(self) -> list[tuple[SampleTokens, SampleTokens]]:
        """Every sample both sides have, with its tokens and per-token quantities."""
        table_a, table_b = read_tokens(self.a, self.step), read_tokens(self.b, self.step)
        pairs = pair_samples(table_a, table_b, *self._known)
        return [(table_a[one], table_b[other]) for one, other in pairs.to_b.items()]

    def tokens(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """One quantity of both sides over all trained tokens of samples with equal tokens; None when not recorded."""
        parts_a, parts_b = [], []
        for one, other in self.samples:
            found_a, found_b = one.trained(name), other.trained(name)
            if found_a is None or found_b is None or len(found_a[0]) != len(found_b[0]):
                continue
            parts_a.append(found_a[0].astype(np.float64))
            parts_b.append(found_b[0].astype(np.float64))
        if not parts_a:
            return None
        return np.concatenate(parts_a), np.concatenate(parts_b)

    def side_tokens(self, index: int, *names: str) -> tuple[np.ndarray, ...] | None:
        """Several quantities of one side (0 is A, 1 is B) over the same tokens."""
        parts = [found for pair in self.samples if (found := pair[index].trained(*names)) is not None]
        if not parts:
            return None
        return tuple(np.concatenate([part[n] for part in parts]).astype(np.float64) for n in range(len(names)))

    def rows(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """One quantity sample by sample."""
        for one, other in self.samples:
            found_a, found_b = one.trained(name), other.trained(name)
            if found_a is not None and found_b is not None and len(found_a[0]) == len(found_b[0]):
                yield found_a[0].astype(np.float64), found_b[0].astype(np.float64)

    def blocks(self, kind: str) -> list[Block]:
        """Records of a kind on both sides, put beside each other."""
        return pair_kind(self.a, self.b, (kind, kind), self.step, *self._known).blocks

    def numbers(self, kind: str, *names: str) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """Numbers of a kind without rows (losses): for each name, the values of A and of B over all records."""
        blocks = [
            block for block in self.blocks(kind) if all(n in block.a.fields and n in block.b.fields for n in names)
        ]
        if not blocks:
            return None
        return [
            (
                np.asarray([float(np.asarray(block.a.fields[name])) for block in blocks]),
                np.asarray([float(np.asarray(block.b.fields[name])) for block in blocks]),
            )
            for name in names
        ]


def largest(values: np.ndarray) -> float:
    """The largest magnitude, 0 for nothing; NaN counts as infinite."""
    if values.size == 0:
        return 0.0
    size = np.abs(values)
    return float("inf") if np.isnan(size).any() else float(size.max())


def fit_factor(x: np.ndarray, y: np.ndarray) -> float:
    """The k that makes k * x nearest to y."""
    norm = float(x @ x)
    return float(x @ y) / norm if norm > 0 else 0.0
