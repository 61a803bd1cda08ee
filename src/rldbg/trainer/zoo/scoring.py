"""The score: every bug against a clean run, and pairs of clean runs, judged by the results of check and compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rldbg.trainer.zoo.bug import Bug
from rldbg.trainer.zoo.catalogue import BUGS, find_bug
from rldbg.trainer.zoo.judging import compared, failed_checks
from rldbg.trainer.zoo.pairs import PAIRS, CleanPair, PairScore, score_pair
from rldbg.trainer.zoo.runs import ZooRun, ZooRunner

# Runs are numbered by their place in the catalogue, so that a folder always holds the same run under a number:
# clean ones, then bugs, then (two numbers each) pairs.
_BUGS_FROM, _PAIRS_FROM = 100, 500
OnRow = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BugScore:
    """One bug: whether it had an effect, which verb found it, and whether stage and cause are right."""

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
class ZooTotals:
    """How many of some bugs were found, by which verb, and named."""

    bugs: int
    changed: int
    found_by_check: int
    found_by_compare: int
    found: int
    stage_right: int
    cause_right: int

    @classmethod
    def of(cls, rows: Sequence[BugScore]) -> ZooTotals:
        return cls(
            len(rows),
            sum(row.changed for row in rows),
            sum(row.found_by_check for row in rows),
            sum(row.found_by_compare for row in rows),
            sum(row.found_by_check or row.found_by_compare for row in rows),
            sum(row.stage_right for row in rows),
            sum(row.cause_right for row in rows),
        )


@dataclass(frozen=True, slots=True)
class ZooScore:
    """How well check and compare found and named the bugs, and judged the clean pairs."""

    bugs: tuple[BugScore, ...]
    pairs: tuple[PairScore, ...]
    seconds: float

    @property
    def false_alarms(self) -> tuple[str, ...]:
        """Clean pairs that were not judged as they should be."""
        return tuple(pair.name for pair in self.pairs if not pair.right)

    def totals(self) -> dict[str, ZooTotals]:
        early, late = ([row for row in self.bugs if row.late is late] for late in (False, True))
        return {"all": ZooTotals.of(self.bugs), "early": ZooTotals.of(early), "late": ZooTotals.of(late)}

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


def first_cause_right(bug: Bug, causes: Sequence[str]) -> bool:
    """The best explanation must be the bug's; others that fit as well may follow."""
    return bool(causes) and causes[0] in bug.causes


def score_bug(name: str, number: int, clean: ZooRun, recipe: Path, folder: Path) -> BugScore:
    """Runs one bug and examines its recording, alone and against the clean one."""
    started = time.perf_counter()
    bug = find_bug(name)
    spoiled = ZooRunner(recipe, folder).run(number, [*bug.overrides, f"++zoo.bug={name}"])
    checks = failed_checks(spoiled.recording)
    verdict, stage, causes = compared(clean.recording, spoiled.recording)
    return BugScore(
        name=name,
        late=bug.late,
        changed=spoiled.parameters != clean.parameters,
        found_by_check=bool(checks),
        found_by_compare=verdict == "different",
        stage=stage,
        stage_right=stage == bug.stage,
        causes=causes,
        cause_right=first_cause_right(bug, causes),
        checks=checks,
        seconds=time.perf_counter() - started,
    )


def score(
    bugs: Sequence[Bug],
    pairs: Sequence[CleanPair],
    recipe: Path,
    folder: Path,
    *,
    processes: int = 2,
    on_row: OnRow = lambda _line: None,
) -> ZooScore:
    """Scores bugs and clean pairs, several at a time; the clean runs come first, because all bugs need them."""
    started = time.perf_counter()
    runner = ZooRunner(recipe, folder)
    clean: dict[tuple[str, ...], ZooRun] = {}
    for number, overrides in enumerate(dict.fromkeys(bug.overrides for bug in BUGS)):
        if any(bug.overrides == overrides for bug in bugs):
            on_row(f"clean {' '.join(overrides)}".strip())
            clean[overrides] = runner.run(number, overrides)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting_pairs = [
            pool.submit(score_pair, pair.name, _PAIRS_FROM + PAIRS.index(pair), recipe, folder) for pair in pairs
        ]
        waiting = [
            pool.submit(score_bug, bug.name, _BUGS_FROM + BUGS.index(bug), clean[bug.overrides], recipe, folder)
            for bug in bugs
        ]
        rows = []
        for bug, result in zip(bugs, waiting, strict=True):
            on_row(bug.name)
            rows.append(result.result())
        judged = tuple(result.result() for result in waiting_pairs)
    return ZooScore(tuple(rows), judged, time.perf_counter() - started)
