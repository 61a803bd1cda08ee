"""What `rldbg run` and `rldbg tunnel` say: the changes to a command, the state of the run, the forwarded ports."""

from collections.abc import Iterator
from shlex import join

from rich.console import RenderableType

from rldbg.launch import Explained, LaunchExplanation
from rldbg.launch.tunnel import Route
from rldbg.reports.findings import to_terminal

_WIDTH = 100


def explanation_lines(explanation: LaunchExplanation) -> Iterator[RenderableType]:
    """Every command with the changes in it, then the hazards."""
    yield f"framework: {explanation.framework}    sandbox: {explanation.isolation}"
    for explained in explanation.commands:
        yield from _command_lines(explained)
    if not explanation.trainings:
        yield "no training command found"
    if explanation.hazards:
        yield from ("", to_terminal(explanation.hazards))


def _command_lines(explained: Explained) -> Iterator[str]:
    call = explained.command.call
    place = f"{call.file}:{call.line}" if call.line else "command line"
    if explained.command.kind == "other":
        yield f"\nnot a training command ({place}): {_short(join(call.argv))}"
        return
    yield f"\ntraining command ({explained.command.profile.name}, {place}, in {call.cwd}):"
    for launcher in explained.command.via:
        yield f"  started by: {_short(join(launcher.argv))}"
    yield f"  {join(call.argv)}"
    for change in explained.changes:
        yield f"  + {change.what}={change.value}"
        yield f"      {change.reason}; by {change.method}"
    for missing in explained.unreached:
        yield f"  - not changed: {missing.what}: {missing.reason}"


def announcement_lines(explanation: LaunchExplanation) -> Iterator[str]:
    """Before the command starts: what is changed in each training command."""
    for explained in explanation.trainings:
        words = " ".join(f"{change.what}={change.value}" for change in explained.changes)
        yield f"{explained.command.profile.name} training, {explained.command.program.name}: {words}"
        for missing in explained.unreached:
            yield f"not changed: {missing.what}: {missing.reason}"


def tunnel_lines(route: Route, alias: str) -> Iterator[str]:
    """What is forwarded, and the commands that use it; `alias` is the local run folder of the broker, if any."""
    yield f"{route.goal}, {route.found}"
    yield f"dashboard: {route.url}"
    yield f"VS Code: Ray Debugger > Add Cluster > 127.0.0.1:{route.dashboard.local}"
    yield f"paused tasks: rldbg ps --ray {route.url}"
    if alias:
        yield f"processes of this run: rldbg ps --run {alias}"
    yield "press Ctrl-C to close the tunnel"


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
