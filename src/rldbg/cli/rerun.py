"""`rldbg rerun`: executes a recorded training step again and says whether it reproduced."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line, print_result
from rldbg.core import ExitCode


@verb("rerun")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=0), required=True, help="The step to execute again.")
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank; the sum over ranks is then the recorded one.")
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the recipe: what would it have done?"
)
@click.option("--pdb", "debugger", is_flag=True, help="Stop in pdb at the beginning of the step.")
def command(run: Path, step: int, rank: int | None, changes: tuple[str, ...], debugger: bool, as_json: bool) -> int:
    """Execute one recorded policy step of RUN again: one process, CPU, no Ray, no inference.

    A step with a capsule (debug.capsule=true) is executed whole; without one, the stages that the recording allows.
    """
    from rldbg.trainer.rerun import Verdict, rerun

    report = rerun(run, step, rank=rank, changes=changes, debugger=debugger)
    if as_json:
        print_json(report.to_dict())
    else:
        print_result(report)
        print_line(_conclusion(report.to_dict()))
    if all(stage.verdict in (Verdict.NOT_EXECUTED, Verdict.NOT_COMPARED) for stage in report.stages):
        return ExitCode.INCOMPLETE
    return ExitCode.OK if report.reproduced or changes else ExitCode.FINDING


def _conclusion(report: dict[str, object]) -> str:
    first, changes = report["first_difference"], report["changes"]
    if changes:
        effect = f"first changes the {first} stage" if first else "changes nothing beyond tolerance"
        return f"with {', '.join(f'{key}={value}' for key, value in dict(changes).items())}: {effect}"  # type: ignore[call-overload]
    if first:
        return f"first difference: {first}"
    return "reproduced" if report["reproduced"] else "nothing could be compared"
