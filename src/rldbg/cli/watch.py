"""`rldbg watch`: judge the steps of a recording while it grows."""

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_note, show
from rldbg.core import ExitCode, IncompleteDataError, RldbgError, Run, UsageError

if TYPE_CHECKING:
    from rldbg.tripwire import Watcher

_LOOK_EVERY_S = 0.5


@verb("watch")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--list", "list_rules", is_flag=True, help="List the rules and their false-alarm rates, then exit.")
@click.option("--follow", is_flag=True, help="Keep watching until the run has ended.")
@click.option("--stop/--note", "stop", default=False, help="Stop all ranks after an event, or report it (default).")
@click.option("--when", multiple=True, metavar="EXPRESSION", help="Also report when this becomes true. Repeatable.")
@click.option("--rules", default="", metavar="FILE", help="Read more rules from this YAML file.")
@click.option("--notify", default="", metavar="COMMAND", help="Run this shell command at each event.")
@click.option(
    "--around", default=2, show_default=True, type=click.IntRange(0, 6), help="Steps to keep around an event."
)
@click.option(
    "--keep-events",
    default=8,
    show_default=True,
    type=click.IntRange(0),
    help="Events of each rule around which steps are kept; later ones are only reported.",
)
@click.option("--checks/--no-checks", default=True, help="Also run invariants of `rldbg check` (default).")
@click.option("--owner", type=int, hidden=True, help="Stop watching when this process ends.")
def command(
    path: Path | None,
    list_rules: bool,
    follow: bool,
    stop: bool,
    when: tuple[str, ...],
    rules: str,
    notify: str,
    around: int,
    keep_events: int,
    checks: bool,
    owner: int | None,
    as_json: bool,
) -> int:
    """Check the steps of PATH (a run or its recording) against rules; with --follow, as they are recorded.

    An event pins the steps around it, so that a recorder that keeps only the last steps keeps them too.

    \b
    rldbg watch RUN                                       every recorded step
    rldbg watch RUN --follow --stop                       stop at an event
    rldbg watch RUN --when 'length > 2 * usual(length)'   a rule of your own
    """
    if list_rules:
        return _list(rules, as_json)
    if path is None:
        raise UsageError("watch needs a recording", "rldbg watch RUN, or rldbg watch --list")
    if not follow and not path.exists():
        raise UsageError(f"{path}: no such folder", "give a run or a recording; --follow waits until it exists")
    if follow and owner is None:
        _wait_until_recorded(path)
    from rldbg.reports.watch import to_terminal
    from rldbg.tripwire import EventLog, Watcher, WatchSettings

    settings = WatchSettings(
        stop=stop, when=when, rules=rules, notify=notify, around=around, keep_events=keep_events, checks=checks
    )
    recording = _recording_of(path)
    log = EventLog(recording)
    watcher = Watcher(
        recording,
        settings,
        say=_say,
        beside_training=follow,
        earlier=() if follow else log.new(),
        notes=() if follow else log.new_notes(),
    )
    if follow:
        _follow(watcher, owner)
    watcher.look(ended=True)
    if not watcher.steps:
        raise IncompleteDataError(
            f"{path} has no recorded step that can be read", "record it: rldbg run --watch, or rldbg run --record"
        )
    events = sorted(watcher.events, key=lambda event: event.step)
    document = {"steps": watcher.steps, "events": [event.to_dict() for event in events], "notes": watcher.notes}
    show(document, as_json, lambda: to_terminal(watcher.steps, events, watcher.notes))
    return ExitCode.FINDING if events else ExitCode.OK


def _follow(watcher: "Watcher", owner: int | None) -> None:
    from rldbg.tripwire import WatchedRun

    os.nice(19)
    watched = WatchedRun(watcher.recording, owner)
    while not watched.has_ended:
        watcher.look()
        _say(watched.new_note())
        time.sleep(_LOOK_EVERY_S)
    _say(watched.new_note())


def _wait_until_recorded(path: Path) -> None:
    """Whether PATH is a run or a recording shows only when there is something in it."""
    from rldbg.recording import open as open_recording
    from rldbg.tripwire import WatchedRun

    watched, is_said = WatchedRun(path, None), False
    while _recording_of(path) == path and not watched.has_ended:
        with contextlib.suppress(RldbgError):
            open_recording(path)
            return
        if not is_said:
            _say(f"nothing is recorded in {path} yet")
        is_said = True
        time.sleep(_LOOK_EVERY_S)


def _say(text: str) -> None:
    if text:
        print_note(f"rldbg watch: {text}")


def _recording_of(path: Path) -> Path:
    """A run's recording, wherever its run.json says it is; else the folder itself."""
    named = Run(path).read().get("recording")
    below = path / str(named or "recording")
    return below if named or below.is_dir() else path


def _list(rules: str, as_json: bool) -> int:
    from rldbg.reports.tables import table
    from rldbg.tripwire import built_in_rules, read_rules

    chosen = read_rules(Path(rules)) if rules else built_in_rules()
    rows = [
        {
            "id": rule.id,
            "measure": rule.measure,
            "moves": rule.moves,
            "false alarms per 1,000 steps": f"{rule.per_1000_steps:g}",
        }
        for rule in chosen
    ]
    show({"rules": rows}, as_json, lambda: [table(*rows[0], rows=(row.values() for row in rows))])
    return ExitCode.OK
