"""`rldbg zoo`: bugs that can be built into the trainer, and how well check and compare explain them."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_note, show
from rldbg.cli.progress import progress
from rldbg.core import ExitCode, UsageError

_ACTIONS = ("list", "run", "score")


@verb("zoo", hidden=True)
@click.argument("action", type=click.Choice(_ACTIONS))
@click.argument("bugs", nargs=-1)
@click.option("--recipe", type=click.Path(path_type=Path), default="zoo", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Folder for the runs.  [default: a temporary one]")
@click.option("--processes", type=click.IntRange(1, 64), default=2, show_default=True, help="Runs in parallel.")
@click.option("--no-pairs", is_flag=True, help="Do not score pairs of clean runs.")
@click.option(
    "--matrix",
    type=click.IntRange(1, 10),
    metavar="SEEDS",
    help="Score under real noise: this many seeds, with varied batch splits, padding, precisions and kernels.",
)
@click.option("--clean-only", is_flag=True, help="With --matrix: score pairs of clean runs only.")
@click.option(
    "--bugs-sample",
    type=click.IntRange(0),
    metavar="K",
    help="With --matrix: score K bugs in randomly chosen cells.  [default: each bug in one cell]",
)
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="With --matrix: start no run after this time.")
@click.option("--markdown", is_flag=True, help="Print the score as the table of docs/zoo.md.")
def command(
    action: str,
    bugs: tuple[str, ...],
    recipe: Path,
    folder: Path | None,
    processes: int,
    no_pairs: bool,
    matrix: int | None,
    clean_only: bool,
    bugs_sample: int | None,
    minutes: float | None,
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
        if matrix is not None:
            count = 0 if clean_only else bugs_sample
            return _matrix(matrix, bugs, count, recipe, place, processes, minutes, as_json, folder is not None)
        return _score(bugs, recipe, place, processes, not no_pairs, markdown, as_json)


def _list(as_json: bool) -> int:
    from rldbg.reports.zoo import list_to_terminal
    from rldbg.trainer.zoo import BUGS

    fields = ("name", "stage", "causes", "place", "late", "story")
    document = {"bugs": [{field: getattr(item, field) for field in fields} for item in BUGS]}
    show(document, as_json, lambda: [list_to_terminal(BUGS)])
    return ExitCode.OK


def _run(bugs: Sequence[str], recipe: Path, folder: Path, as_json: bool) -> int:
    """Runs one bug and a clean run, and compares them."""
    from rldbg.analysis import compare
    from rldbg.recording import open as open_recording
    from rldbg.reports.zoo import run_to_lines
    from rldbg.trainer.zoo import ZooRunner, failed_checks, find_bug

    if len(bugs) != 1:
        raise UsageError("run takes one bug", "`rldbg zoo list` lists them")
    bug, runner = find_bug(bugs[0]), ZooRunner(recipe, folder)
    clean, spoiled = runner.run(0, bug.overrides), runner.run(1, [*bug.overrides, f"++zoo.bug={bug.name}"])
    result = compare(open_recording(clean.recording), open_recording(spoiled.recording))
    checks = failed_checks(spoiled.recording)
    facts = {"bug": bug.name, "story": bug.story, "changed": clean.parameters != spoiled.parameters}
    document = {**facts, "checks": list(checks), "compare": result.to_dict()}
    show(document, as_json, lambda: run_to_lines(bug, checks, result))
    return ExitCode.OK


def _matrix(
    seeds: int,
    bugs: Sequence[str],
    count: int | None,
    recipe: Path,
    folder: Path,
    processes: int,
    minutes: float | None,
    as_json: bool,
    kept: bool,
) -> int:
    """Clean pairs, and bugs with different splits and kernels; with names, only those bugs."""
    import torch

    from rldbg.reports.zoo import matrix_to_lines
    from rldbg.trainer.zoo import bug_cells, clean_cells, score_matrix

    spoiled = [cell for cell in bug_cells(seeds, count) if not bugs or cell.bug in bugs]
    result = score_matrix(
        [*clean_cells(seeds, cuda=torch.cuda.is_available()), *spoiled],
        recipe,
        folder,
        processes=processes,
        minutes=minutes,
        on_row=lambda row: print_note(f"{row.name}: {row.verdict}{'' if row.right else '  <- wrong'}"),
    )
    show(result.to_dict(), as_json, lambda: matrix_to_lines(result, kept=kept))
    return ExitCode.FINDING if result.wrong else ExitCode.OK


def _score(
    bugs: Sequence[str], recipe: Path, folder: Path, processes: int, with_pairs: bool, markdown: bool, as_json: bool
) -> int:
    from rldbg.reports.zoo import score_to_lines, score_to_markdown
    from rldbg.trainer.zoo import BUGS, PAIRS, find_bug, score

    chosen = [find_bug(name) for name in bugs] or BUGS
    pairs = PAIRS if with_pairs else ()
    with progress("scoring", "runs", as_json=as_json) as advance:

        def on_row(line: str) -> None:
            print_note(line)
            advance()

        result = score(chosen, pairs, recipe, folder, processes=processes, on_row=on_row)
    show(result.to_dict(), as_json, lambda: score_to_markdown(result) if markdown else score_to_lines(result))
    everything = result.totals()["all"]
    return ExitCode.OK if everything.found == everything.bugs and not result.false_alarms else ExitCode.FINDING
