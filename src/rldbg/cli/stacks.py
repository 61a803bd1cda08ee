"""`rldbg stacks`: the stacks of all ranks, identical ones grouped; with --diagnose, why they hang."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rldbg.cli.application import verb
from rldbg.cli.live_target import open_target, target_options
from rldbg.cli.output import show
from rldbg.core import ExitCode

if TYPE_CHECKING:
    from rldbg.live import Diagnosis, StackGroup

_BETWEEN_LOOKS_S = 1.0


@verb("stacks", short_help="Group identical stacks of all ranks; explain hangs (--diagnose).")
@click.argument("who", default="all")
@target_options
@click.option("--native", is_flag=True, help="Include C and C++ frames (needs py-spy).")
@click.option("--locals", "with_locals", is_flag=True, help="Show the local variables of every frame.")
@click.option("--diagnose", "diagnosing", is_flag=True, help="Explain a hang: name the rank that the others wait for.")
@click.option(
    "--dumps",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Diagnose a folder of flight recorder dumps instead of live processes.",
)
def command(
    who: str,
    run_dir: Path | None,
    ray_url: str | None,
    native: bool,
    with_locals: bool,
    diagnosing: bool,
    dumps: Path | None,
    as_json: bool,
) -> int:
    """Show the stacks of all ranks: identical stacks once, the smallest group first.

    With --diagnose, explain a hang in one sentence: which rank never entered which collective, and where it is instead.
    """
    from rldbg.live import diagnose_dumps, diagnose_stacks, group_stacks
    from rldbg.reports.stacks import to_lines

    if dumps is not None:
        return _show_diagnosis(diagnose_dumps(dumps), [], as_json)
    with open_target(run_dir, ray_url) as client:
        wanted = {"native": native, "locals": with_locals, "flight_record": diagnosing}
        before = stacks = client.request("stacks", who=who, **wanted)["stacks"]
        if diagnosing:
            time.sleep(_BETWEEN_LOOKS_S)
            stacks = client.request("stacks", who=who, **wanted)["stacks"]
    groups = group_stacks(stacks)
    if diagnosing:
        return _show_diagnosis(diagnose_stacks(before, stacks), groups, as_json)
    show({"groups": [group.to_dict() for group in groups], "stacks": stacks}, as_json, lambda: to_lines(groups))
    return ExitCode.OK


def _show_diagnosis(diagnosis: "Diagnosis", groups: list["StackGroup"], as_json: bool) -> int:
    from rldbg.reports.findings import to_terminal
    from rldbg.reports.stacks import to_lines

    finding = diagnosis.to_finding()
    document = {"diagnosis": diagnosis.to_dict(), "groups": [group.to_dict() for group in groups]}
    show(document, as_json, lambda: [to_terminal([finding]), *to_lines(groups)])
    return ExitCode.FINDING if finding.severity == "error" else ExitCode.OK
