"""The bug zoo: its list, one bug compared with a clean run, and the score of all."""

from collections.abc import Iterator, Sequence

from rldbg.analysis import Comparison
from rldbg.reports.comparison import nearest_text
from rldbg.reports.tables import Table, table
from rldbg.trainer.zoo import Bug, MatrixScore, ZooScore

_WRONG = "  <- wrong"


def list_to_terminal(bugs: Sequence[Bug]) -> Table:
    return table("bug", "first stage", "description", rows=((bug.name, bug.stage, bug.story) for bug in bugs))


def run_to_lines(bug: Bug, checks: Sequence[str], comparison: Comparison) -> Iterator[str]:
    first = comparison.first_difference
    yield f"{bug.name}: {bug.story}"
    yield f"  changes   {bug.place}"
    yield f"  check     {', '.join(checks) or 'no violation'}"
    yield f"  compare   first difference: {'none' if first is None else f'{first.stage.value}, step {first.step}'}"
    for item in comparison.explanations:
        yield f"  because   {item.explains}  ({item.id})"
    for item in comparison.candidates:
        yield f"  candidate {item.explains}  ({item.id})"
    for item in comparison.nearest:
        yield f"  nearest   {nearest_text(item)}"


def score_to_lines(score: ZooScore) -> Iterator[str]:
    for row in score.bugs:
        said = f"{row.stage or 'nothing'} / {', '.join(row.causes) or 'no cause'}"
        wrong = "" if row.stage_right and row.cause_right else _WRONG
        yield f"{row.name:36} {'check ' if row.found_by_check else '      '} {said}{wrong}"
    for pair in score.pairs:
        yield f"{pair.name:36}        {pair.verdict}{'' if pair.right else _WRONG}"
    yield from _totals(score)
    yield f"false alarms: {', '.join(score.false_alarms) or 'none'}; {score.seconds:.0f} s"


def matrix_to_lines(score: MatrixScore, *, kept: bool) -> Iterator[str]:
    """What was judged wrongly, with the command that shows it if the recordings are kept, and the totals."""
    for row in score.wrong:
        yield f"{row.name}: {row.verdict}, {row.stage or 'nothing'} / {', '.join(row.causes) or 'no cause'}"
        if row.error:
            yield f"  {row.error}"
        elif kept:
            yield f"  rldbg compare {' '.join(row.recordings)}"
    for row in score.rows:
        if row.hidden:
            yield f"{row.name}: {row.hidden}, so it cannot be seen here"
    yield ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in score.totals().items())
    seconds = [row.seconds for row in score.rows if row.seconds]
    if seconds:
        yield f"{sum(seconds) / len(seconds):.1f} CPU seconds per pair, without the runs that pairs share"
    if score.left:
        yield f"{score.left} not judged: time was up; the same command with --folder continues"


def score_to_markdown(score: ZooScore) -> Iterator[str]:
    """The matrix of docs/zoo.md."""
    yield from (f"- {line}" for line in _totals(score))
    yield f"- clean pairs: {len(score.pairs) - len(score.false_alarms)} of {len(score.pairs)} judged right"
    yield ""
    yield "| bug | | check | compare | stage | cause named |"
    yield "|---|---|---|---|---|---|"
    for row in score.bugs:
        check = ", ".join(row.checks) if row.found_by_check else "-"
        stage = f"{_mark(row.stage_right)} {row.stage}"
        cause = f"{_mark(row.cause_right)} {', '.join(row.causes[:2]) or 'none'}"
        age = "late" if row.late else ""
        yield f"| {row.name} | {age} | {check} | {_mark(row.found_by_compare)} | {stage} | {cause} |"
    yield ""
    yield "| clean pair | must be | is | causes | |"
    yield "|---|---|---|---|---|"
    for pair in score.pairs:
        named = ", ".join(pair.causes) or "-"
        yield f"| {pair.name} | {pair.expected} | {pair.verdict} | {named} | {_mark(pair.right)} |"


def _totals(score: ZooScore) -> Iterator[str]:
    for name, totals in score.totals().items():
        yield (
            f"{name}: {totals.bugs} bugs, {totals.found} found (compare {totals.found_by_compare}, "
            f"check {totals.found_by_check}), stage right {totals.stage_right}, cause named {totals.cause_right}"
        )


def _mark(right: bool) -> str:
    return "✓" if right else "✗"
