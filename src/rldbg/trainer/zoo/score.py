"""The score: every bug against a clean run, and pairs of clean runs, judged by what check and compare say of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rldbg.trainer.zoo.bug import Bug
from rldbg.trainer.zoo.catalogue import find_bug
from rldbg.trainer.zoo.runs import ZooRun, ZooRunner

OnRow = Callable[[str], None]


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


def first_cause_right(bug: Bug, causes: Sequence[str]) -> bool:
    """The best explanation must be the bug's; others that fit as well may follow."""
    return bool(causes) and causes[0] in bug.causes


def score_bug(name: str, number: int, clean: ZooRun, recipe: Path, folder: Path) -> BugScore:
    """Runs one bug and looks at its recording, alone and beside the clean one."""
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


def failed_checks(recording: Path) -> tuple[str, ...]:
    """The checks that do not hold, without those that merely inform."""
    from rldbg.analysis import check
    from rldbg.core import Severity
    from rldbg.recording import open as open_recording

    report = check(open_recording(recording))
    return tuple(dict.fromkeys(item.id for item in report.findings if item.severity is not Severity.INFO))


def compared(a: Path, b: Path) -> tuple[str, str | None, tuple[str, ...]]:
    """The verdict, the first stage that differs, and the ids of the explanations, best first."""
    from rldbg.analysis import compare
    from rldbg.recording import open as open_recording

    result = compare(open_recording(a), open_recording(b))
    first = result.first_difference
    causes = tuple(dict.fromkeys(item.id for item in result.explanations))
    return result.verdict, None if first is None else first.stage.value, causes


def score_bugs(
    bugs: Sequence[Bug], recipe: Path, folder: Path, *, processes: int = 2, on_row: OnRow = lambda _line: None
) -> Iterator[BugScore]:
    """Scores bugs in several processes; rows come in the order of the bugs."""
    runner = ZooRunner(recipe, folder)
    clean: dict[tuple[str, ...], ZooRun] = {}
    for bug in bugs:
        if bug.overrides not in clean:
            clean[bug.overrides] = runner.run(len(clean), bug.overrides)
    first = len(clean)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = [
            pool.submit(score_bug, bug.name, first + number, clean[bug.overrides], recipe, folder)
            for number, bug in enumerate(bugs)
        ]
        for bug, result in zip(bugs, waiting, strict=True):
            on_row(bug.name)
            yield result.result()
