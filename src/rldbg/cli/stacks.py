"""`rldbg stacks`: where every rank is, equal stacks once, the odd one first; with --diagnose, why nobody moves."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.live_target import open_target, target_options
from rldbg.cli.output import print_findings, print_json, print_line, print_note
from rldbg.core import ExitCode

if TYPE_CHECKING:
    from rldbg.live import Diagnosis, StackGroup

_SHOWN_FRAMES = 12
_BETWEEN_LOOKS_S = 1.0


@verb("stacks", short_help="Where every rank is, equal stacks once; --diagnose says why nobody moves.")
@click.argument("who", default="all")
@target_options
@click.option("--native", is_flag=True, help="C and C++ frames too, through py-spy.")
@click.option("--locals", "with_locals", is_flag=True, help="The local variables of every frame.")
@click.option("--diagnose", "diagnosing", is_flag=True, help="Name the rank that the others wait for.")
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
    """Where every rank is: equal stacks once, the odd one first.

    With --diagnose also why nobody moves, in one sentence: who never entered which collective, and where it is instead.
    """
    from rldbg.live import diagnose_dumps, diagnose_stacks, group_stacks

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
    if as_json:
        print_json({"groups": [group.to_dict() for group in groups], "stacks": stacks})
    else:
        _show_groups(groups)
    return ExitCode.OK


def _show_diagnosis(diagnosis: "Diagnosis", groups: list["StackGroup"], as_json: bool) -> int:
    finding = diagnosis.to_finding()
    if as_json:
        print_json({"diagnosis": diagnosis.to_dict(), "groups": [group.to_dict() for group in groups]})
    else:
        print_findings([finding])
        _show_groups(groups)
    return ExitCode.FINDING if finding.severity == "error" else ExitCode.OK


def _show_groups(groups: list["StackGroup"]) -> None:
    for group in groups:
        print_line("")
        print_line(group.title())
        if group.unanswered:
            print_note(f"  {group.unanswered}")
        for frame in group.frames[:_SHOWN_FRAMES]:
            print_line(f"    {frame['file']}:{frame['line']} {frame['function']}")
            _show_locals(frame)
        if len(group.frames) > _SHOWN_FRAMES:
            print_line(f"    ... {len(group.frames) - _SHOWN_FRAMES} frames further out")


def _show_locals(frame: dict[str, Any]) -> None:
    for name, facts in (frame.get("locals") or {}).items():
        print_line(f"        {name} = {facts['text']}")
