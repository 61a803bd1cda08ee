"""The matrix of a score: totals, and the table of the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rldbg.trainer.zoo.pairs import PairScore


@dataclass(frozen=True, slots=True)
class BugScore:
    """One bug: whether it did anything, who found it, and whether stage and cause were named right."""

    name: str
    late: bool
    changed: bool
    found_by_check: bool
    found_by_compare: bool
    stage: str | None
    stage_right: bool
    causes: tuple[str, ...]
    cause_right: bool
    checks: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Totals:
    """How many of some bugs were found, by whom, and named."""

    bugs: int
    changed: int
    found_by_check: int
    found_by_compare: int
    found: int
    stage_right: int
    cause_right: int

    @classmethod
    def of(cls, rows: Sequence[BugScore]) -> Totals:
        return cls(
            len(rows),
            sum(row.changed for row in rows),
            sum(row.found_by_check for row in rows),
            sum(row.found_by_compare for row in rows),
            sum(row.found_by_check or row.found_by_compare for row in rows),
            sum(row.stage_right for row in rows),
            sum(row.cause_right for row in rows),
        )

    def __str__(self) -> str:
        return (
            f"{self.bugs} bugs, {self.found} found (compare {self.found_by_compare}, check {self.found_by_check}), "
            f"stage right {self.stage_right}, cause named {self.cause_right}"
        )


@dataclass(frozen=True, slots=True)
class ZooReport:
    """Everything a score says."""

    bugs: tuple[BugScore, ...]
    pairs: tuple[PairScore, ...]
    seconds: float

    @property
    def false_alarms(self) -> tuple[str, ...]:
        """Clean pairs that were not judged as they should be."""
        return tuple(pair.name for pair in self.pairs if not pair.right)

    def totals(self) -> dict[str, Totals]:
        early, late = ([row for row in self.bugs if row.late is late] for late in (False, True))
        return {"all": Totals.of(self.bugs), "early": Totals.of(early), "late": Totals.of(late)}

    def to_dict(self) -> dict[str, Any]:
        return {
            "totals": {name: asdict(totals) for name, totals in self.totals().items()},
            "false_alarms": list(self.false_alarms),
            "seconds": self.seconds,
            "rows": [
                *({"row": "bug", **row.to_dict()} for row in self.bugs),
                *({"row": "pair", **pair.to_dict()} for pair in self.pairs),
            ],
        }

    def markdown(self) -> Iterator[str]:
        """The matrix as it stands in docs/zoo.md."""
        for name, totals in self.totals().items():
            yield f"- {name}: {totals}"
        yield f"- clean pairs: {len(self.pairs) - len(self.false_alarms)} of {len(self.pairs)} judged right"
        yield ""
        yield "| bug | | check | compare | stage | cause named |"
        yield "|---|---|---|---|---|---|"
        for row in self.bugs:
            check = ", ".join(row.checks) if row.found_by_check else "-"
            stage = f"{_mark(row.stage_right)} {row.stage}"
            cause = f"{_mark(row.cause_right)} {', '.join(row.causes[:2]) or 'none'}"
            age = "late" if row.late else ""
            yield f"| {row.name} | {age} | {check} | {_mark(row.found_by_compare)} | {stage} | {cause} |"
        yield ""
        yield "| clean pair | must be | is | causes | |"
        yield "|---|---|---|---|---|"
        for pair in self.pairs:
            named = ", ".join(pair.causes) or "-"
            yield f"| {pair.name} | {pair.expected} | {pair.verdict} | {named} | {_mark(pair.right)} |"


def _mark(right: bool) -> str:
    return "✓" if right else "✗"
