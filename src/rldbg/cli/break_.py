"""`rldbg break`: set, list and clear breakpoints in running processes."""

from pathlib import Path
from typing import Any

import click

from rldbg.cli.application import verb
from rldbg.cli.live_target import open_target, target_options
from rldbg.cli.output import print_json, print_line, print_note, show
from rldbg.core import ExitCode, UsageError


@verb("break", short_help="Set, list and clear breakpoints in running processes.")
@click.argument("place", metavar="[FILE:LINE]", required=False)
@target_options
@click.option("--if", "condition", metavar="EXPR", help="Stop only if this is true. Costs about 20 us per hit.")
@click.option("--log", metavar="TEXT", help="Do not stop; log TEXT with {expressions} filled in.")
@click.option("--ranks", default="all", show_default=True, help="Processes to set it in, including later ones.")
@click.option("--once", is_flag=True, help="Stop once per process.")
@click.option(
    "--on-exception",
    type=click.Choice(["raised", "unhandled"]),
    is_flag=False,
    flag_value="unhandled",
    metavar="[raised|unhandled]",
    help="Stop where an exception leaves your code (unhandled), or wherever one is raised (raised).",
)
@click.option("--list", "listing", is_flag=True, help="List breakpoints, their hits and the last log lines.")
@click.option("--clear", is_flag=False, flag_value="all", metavar="[IDS]", help="Remove breakpoints: all, or 1,3.")
def command(
    place: str | None,
    run_dir: Path | None,
    ray_url: str | None,
    condition: str | None,
    log: str | None,
    ranks: str,
    once: bool,
    on_exception: str | None,
    listing: bool,
    clear: str | None,
    as_json: bool,
) -> int:
    """Set, list and clear breakpoints in running processes.

    \b
    rldbg break train.py:88 --ranks policy/0 --if "loss != loss"
    rldbg break mypackage.reward:12 --log "reward {reward} for {prompt[:40]}"
    """
    with open_target(run_dir, ray_url) as client:
        if clear is not None:
            cleared = client.request("break_clear", ids=_numbers(clear))
            said = f"cleared: {', '.join(map(str, cleared['cleared'])) or 'nothing was set'}"
            show(cleared, as_json, lambda: [said])
            return ExitCode.OK
        if listing or not (place or on_exception):
            return _show_list(client.request("break_list"), as_json)
        body: dict[str, Any] = {"if": condition, "log": log, "ranks": ranks, "once": once, "on_exception": on_exception}
        made = client.request("break_set", **body, **_parse(place))
        return _show_made(made, as_json)


def _numbers(text: str) -> list[int]:
    """Empty means all."""
    parts = [part.strip() for part in text.split(",")]
    if text == "all":
        return []
    if not all(part.isdigit() for part in parts):
        raise UsageError(
            f"invalid breakpoint numbers: {text!r}",
            "use the numbers that `rldbg break --list` shows: rldbg break --clear 1,3",
        )
    return [int(part) for part in parts]


def _parse(place: str | None) -> dict[str, Any]:
    if place is None:
        return {}
    from rldbg.live import break_place

    file, line = break_place(place)
    return {"file": file, "line": line}


def _show_made(made: dict[str, Any], as_json: bool) -> int:
    from rldbg.live import break_text, breakpoint_warning

    doubt = breakpoint_warning(made)
    if as_json:
        print_json({"break": made | {"doubt": doubt or None}})
    else:
        print_line(break_text(made))
        if not made["set_in"]:
            print_note("no running process matches --ranks; the breakpoint is set in later ones that do")
        if doubt:
            print_note(doubt)
    return ExitCode.FINDING if doubt else ExitCode.OK


def _show_list(answer: dict[str, Any], as_json: bool) -> int:
    from rldbg.live import break_text

    if as_json:
        print_json(answer)
        return ExitCode.OK
    for each in answer["breaks"]:
        print_line(break_text(each))
    for line in answer["log"][-50:]:
        print_line(f"{line['who']}: {line['text']}")
    if answer["log"]:
        print_note(f"all log lines: {answer['log_file']}")
    if not answer["breaks"]:
        print_note("no breakpoints set")
    return ExitCode.OK
