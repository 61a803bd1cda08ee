"""`rldbg zoo`: bugs built into the trainer on purpose, and how well check and compare explain them."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line, print_note, print_result
from rldbg.core import ExitCode, UsageError

_ACTIONS = ("list", "run", "score")


@verb("zoo", hidden=True)
@click.argument("action", type=click.Choice(_ACTIONS))
@click.argument("bugs", nargs=-1)
@click.option("--recipe", type=click.Path(path_type=Path), default="zoo", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Folder for the runs.  [default: a temporary one]")
@click.option("--processes", type=click.IntRange(1, 64), default=2, show_default=True, help="Runs in parallel.")
@click.option("--no-pairs", is_flag=True, help="Do not score pairs of clean runs.")
@click.option("--markdown", is_flag=True, help="Print the score as the table of docs/zoo.md.")
def command(
    action: str,
    bugs: tuple[str, ...],
    recipe: Path,
    folder: Path | None,
    processes: int,
    no_pairs: bool,
    markdown: bool,
    as_json: bool,
) -> int:
    """List the bugs, run one and compare it with a clean run, or score all (or BUGS).

    `rldbg train zoo zoo.bug=NAME` makes a run with a bug, without comparing.
    """
    if action == "list":
        return _list(as_json)
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rldbg-zoo-")))
        if action == "run":
            return _run(bugs, recipe, place, as_json)
        return _score(bugs, recipe, place, processes, not no_pairs, markdown, as_json)


def _list(as_json: bool) -> int:
    from rldbg.trainer.zoo import BUGS

    if as_json:
        fields = ("name", "stage", "causes", "place", "late", "story")
        print_json({"bugs": [{field: getattr(item, field) for field in fields} for item in BUGS]})
        return ExitCode.OK
    from rich.table import Table

    table = Table("bug", "first stage", "what is wrong", box=None, header_style="bold")
    for item in BUGS:
        table.add_row(item.name, item.stage, item.story)
    print_result(table)
    return ExitCode.OK


def _run(bugs: Sequence[str], recipe: Path, folder: Path, as_json: bool) -> int:
    """One bug beside a clean run, and what compare says."""
    from rldbg.analysis import compare, nearest_text
    from rldbg.recording import open as open_recording
    from rldbg.trainer.zoo import find_bug
    from rldbg.trainer.zoo.judging import failed_checks
    from rldbg.trainer.zoo.runs import ZooRunner

    if len(bugs) != 1:
        raise UsageError("run takes one bug", "rldbg zoo list names them")
    bug, runner = find_bug(bugs[0]), ZooRunner(recipe, folder)
    clean, spoiled = runner.run(0, bug.overrides), runner.run(1, [*bug.overrides, f"++zoo.bug={bug.name}"])
    result = compare(open_recording(clean.recording), open_recording(spoiled.recording))
    checks = failed_checks(spoiled.recording)
    first = result.first_difference
    if as_json:
        facts = {"bug": bug.name, "story": bug.story, "changed": clean.parameters != spoiled.parameters}
        print_json({**facts, "checks": list(checks), "compare": result.to_dict()})
        return ExitCode.OK
    print_line(f"{bug.name}: {bug.story}")
    print_line(f"  spoils    {bug.place}")
    print_line(f"  check     {', '.join(checks) or 'finds nothing'}")
    print_line(
        f"  compare   first difference: {'none' if first is None else f'{first.stage.value}, step {first.step}'}"
    )
    for item in result.explanations:
        print_line(f"  because   {item.explains}  ({item.id})")
    for item in result.nearest:
        print_line(f"  not quite {nearest_text(item)}")
    return ExitCode.OK


def _score(
    bugs: Sequence[str], recipe: Path, folder: Path, processes: int, with_pairs: bool, markdown: bool, as_json: bool
) -> int:
    from rldbg.trainer.zoo import BUGS, find_bug
    from rldbg.trainer.zoo.pairs import PAIRS
    from rldbg.trainer.zoo.score import score

    chosen = [find_bug(name) for name in bugs] or BUGS
    pairs = PAIRS if with_pairs else ()
    report = score(chosen, pairs, recipe, folder, processes=processes, on_row=print_note)
    if as_json:
        print_json(report.to_dict())
    elif markdown:
        for line in report.markdown():
            print_line(line)
    else:
        for row in report.bugs:
            said = f"{row.stage or 'nothing'} / {', '.join(row.causes) or 'no cause'}"
            wrong = "" if row.stage_right and row.cause_right else "  <- not as it should be"
            print_line(f"{row.name:36} {'check ' if row.found_by_check else '      '} {said}{wrong}")
        for pair in report.pairs:
            print_line(f"{pair.name:36}        {pair.verdict}{'' if pair.right else '  <- not as it should be'}")
        for name, totals in report.totals().items():
            print_line(f"{name}: {totals}")
        print_line(f"false alarms: {', '.join(report.false_alarms) or 'none'}; {report.seconds:.0f} s")
    everything = report.totals()["all"]
    return ExitCode.OK if everything.found == everything.bugs and not report.false_alarms else ExitCode.FINDING
