"""Where in a block's rows something is, and what comparing its rows found so far."""

from __future__ import annotations

from dataclasses import dataclass

from rldbg.analysis.measured import Measured


@dataclass(frozen=True, slots=True)
class RowPlace:
    """A position in the block, a column in the field, and both values there (None where a side has none)."""

    position: int
    column: int | None
    a: object
    b: object

    @property
    def order(self) -> tuple[int, int]:
        return (self.position, self.column or 0)


@dataclass(slots=True)
class RowsResult:
    """Totals over rows; the first place is the lowest one, whatever the order of adding."""

    measured: Measured
    first: RowPlace | None = None
    worst: RowPlace | None = None
    odd: RowPlace | None = None
    lengths_differ: bool = False

    def add(self, measured: Measured, first: RowPlace | None, worst: RowPlace | None, odd: RowPlace | None) -> None:
        total = self.measured
        if worst is not None and measured.worst_excess > total.worst_excess:
            total.worst_excess = measured.worst_excess
            self.worst = worst
        if first is not None and (self.first is None or first.order < self.first.order):
            self.first = first
        self.odd = self.odd or odd
        total.add(measured)
