"""A cause's claim on some of the gap, and the state that causes are tried on one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rldbg.analysis import NOISE
from rldbg.mismatch.token_table import TokenTable


@dataclass(frozen=True, slots=True)
class Claim:
    """What a cause says: `left` is what remains of |gap| at the tokens in `rows` if it is true."""

    id: str
    text: str
    rows: np.ndarray
    left: np.ndarray
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class Unexplained:
    """Tokens whose gap no cause has accounted for yet. `size` is what is left of |gap| at every token."""

    table: TokenTable
    size: np.ndarray
    explained: np.ndarray

    @classmethod
    def all_of(cls, table: TokenTable) -> Unexplained:
        # A log prob that is not finite counts like a probability off by a factor of e^e, so that it has a share.
        size = np.where(np.isfinite(table.gap), np.abs(table.gap), np.e)
        return cls(table, size, np.zeros(len(table), dtype=bool))

    @property
    def open(self) -> np.ndarray:
        """Tokens that nothing has claimed."""
        return ~self.explained

    @property
    def apart(self) -> np.ndarray:
        """Unclaimed tokens whose log probs differ by more than rounding."""
        return self.open & (self.size > NOISE)

    def take(self, claim: Claim) -> float:
        """Adds a claim; returns how much of the gap it accounts for."""
        before = float(self.size[claim.rows].sum())
        self.size[claim.rows] = np.minimum(self.size[claim.rows], claim.left)
        self.explained[claim.rows] = True
        return before - float(self.size[claim.rows].sum())


def whole(id: str, text: str, chosen: np.ndarray, **parameters: Any) -> Claim:
    """A claim that leaves nothing of the gap at the chosen tokens."""
    rows = np.flatnonzero(chosen)
    return Claim(id, text, rows, np.zeros(len(rows)), parameters)
