"""`rldbg bisect A B`: the first module whose output differs."""

from typing import Literal

import click

from rldbg.cli.application import verb
from rldbg.cli.output import show
from rldbg.core import ExitCode


@verb("bisect")
@click.argument("a")
@click.argument("b")
@click.option("--step", type=int, required=True, help="Step whose capsules are run.")
@click.option("--sample", help="Sample to run, group_id/run_id.  [default: the first]")
@click.option("--tokens-of", metavar="RUN", help="Recording that has the sample.  [default: A, or B]")
@click.option("--set-a", "changes_a", multiple=True, help="Override a key of A's recipe, key=value. Repeatable.")
@click.option("--set-b", "changes_b", multiple=True, help="Override a key of B's recipe, key=value. Repeatable.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Device that both models run on.",
)
def command(
    a: str,
    b: str,
    step: int,
    sample: str | None,
    tokens_of: str | None,
    changes_a: tuple[str, ...],
    changes_b: tuple[str, ...],
    device: Literal["auto", "cpu", "cuda"],
    as_json: bool,
) -> int:
    """Run one recorded sample through the models of A and B and name the first module whose output differs.

    A is a recording with capsules or a Hugging Face folder; B is one too, or a folder written by SGLang's dumper or
    msprobe. Exit code 1 when a module differs by more than rounding.

    \b
    rldbg bisect A B --step 12                                two runs
    rldbg bisect A A --step 12 --set-b model.dtype=bfloat16   two settings
    """
    from rldbg.bisection import bisect_runs
    from rldbg.reports.bisection import to_terminal

    report = bisect_runs(
        a,
        b,
        step=step,
        sample=sample,
        tokens_of=tokens_of,
        changes_a=changes_a,
        changes_b=changes_b,
        device=device,
    )
    show(report.to_dict(), as_json, lambda: to_terminal(report))
    return ExitCode.OK if report.agrees else ExitCode.FINDING
