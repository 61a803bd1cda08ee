"""`rldbg attach`: open a pdb prompt in a stopped process, several processes, or a crash file."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.live_target import open_target, print_broadcast, target_options, tell_delay
from rldbg.cli.output import print_json, print_line, print_note, show
from rldbg.core import Environment, ExitCode, UsageError

if TYPE_CHECKING:
    from rldbg.live import BrokerClient, Commands


@verb("attach", short_help="Open a pdb prompt in a stopped process, several processes, or a crash file.")
@click.argument("who", required=False, metavar="[WHO|CRASHFILE]")
@target_options
@click.option(
    "-c", "commands", multiple=True, metavar="COMMAND", help="Run this command instead of opening a prompt; repeatable."
)
@click.option(
    "--ide", is_flag=True, help="Open a local port for VS Code or another editor with a debug adapter client."
)
@click.option("--port", default=0, help="Local port for --ide.  [default: a free one]")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    help="Unix socket for editors that can use one, instead of --ide's port.",
)
@click.option(
    "--launch-json",
    type=click.Path(path_type=Path, dir_okay=False),
    is_flag=False,
    flag_value=Path(".vscode/launch.json"),
    help="With --ide: also write the configuration to this file.  [default: .vscode/launch.json]",
)
@click.option("--wait", "wait_s", default=30.0, show_default=True, help="Seconds to wait for the next stop.")
def command(
    who: str | None,
    run_dir: Path | None,
    ray_url: str | None,
    commands: tuple[str, ...],
    ide: bool,
    port: int,
    socket_path: Path | None,
    launch_json: Path | None,
    wait_s: float,
    as_json: bool,
) -> int:
    """Open a pdb prompt in a stopped process, several processes, or a crash file.

    A running process is paused first. Leaving (q) keeps it stopped; `c` or `rldbg continue` resumes it. WHO may be left
    out when only one process is stopped. Type h at the prompt for its commands.

    \b
    rldbg attach policy/1                    a prompt on that rank
    rldbg attach policy/1 -c "p loss" -c c   two commands, no prompt
    rldbg attach RUN/crashes/FILE.json       after the job has ended
    """
    if who is not None and who.endswith(".json") and Path(who).exists():
        return _at_crash_file(Path(who), commands, as_json)
    if who is not None and who.endswith(".json"):
        raise UsageError(f"no such crash file: {who}", "crash files are in RUN/crashes; `rldbg ps` lists processes")
    from rldbg.live import Commands, OtherProcesses, ProcessGroup

    with open_target(run_dir, ray_url) as client:
        who = who or _the_stopped_one(client)
        if ide or socket_path:
            return _serve_editors(client.run, who, port, socket_path, launch_json, as_json)
        group = ProcessGroup(client, who, stop=True, wait_s=wait_s, on_delay=lambda facts: tell_delay(client, facts))
        commands_at = Commands(group.prompts, OtherProcesses(client))
        if commands or not sys.stdin.isatty():
            code = _run_script(commands_at, commands or _lines_of_stdin(), as_json)
        else:
            code = _run_prompt(commands_at)
        _note_what_stays(client)
    return code


def _at_crash_file(path: Path, commands: tuple[str, ...], as_json: bool) -> int:
    from rldbg.live import Commands, CrashFile, PdbCommands

    crash = CrashFile(path)
    if not as_json:
        print_line(crash.headline())
    at_file = Commands([PdbCommands(crash)])
    if commands or not sys.stdin.isatty():
        return _run_script(at_file, commands or _lines_of_stdin(), as_json)
    return _run_prompt(at_file)


def _serve_editors(
    run: Path, who: str, port: int, socket_path: Path | None, launch_json: Path | None, as_json: bool
) -> int:
    """Serves editors until interrupted, or until the process has ended."""
    from rldbg.live import EditorPort, launch_configuration, write_launch_configuration

    editor = EditorPort(run, who, port, socket_path=socket_path)
    if socket_path is not None:
        facts = {"who": editor.facts["who"], "socket": str(socket_path)}
        print_json(facts) if as_json else print_line(f"{facts['who']} at {socket_path}")
        sys.stdout.flush()
        editor.serve(print_note)
        return ExitCode.OK
    configuration = launch_configuration(editor.facts["who"], editor.port, editor.facts.get("cwd", ""))
    if launch_json is not None:
        write_launch_configuration(launch_json, configuration)
        print_note(f"written into {launch_json}")
    document = {"host": "127.0.0.1", "port": editor.port, "configuration": configuration}
    said = f"{editor.facts['who']} at 127.0.0.1:{editor.port}; for launch.json:"
    show(document, as_json, lambda: [said, json.dumps(configuration, indent=2)])
    sys.stdout.flush()
    editor.serve(print_note)
    return ExitCode.OK


def _the_stopped_one(client: "BrokerClient") -> str:
    stopped = [p["who"] for p in client.request("ps")["processes"] if p["state"] == "stopped"]
    if len(stopped) != 1:
        if not stopped:
            raise UsageError("no process is stopped", "`rldbg ps` lists processes; `rldbg attach WHO` pauses one")
        names = ", ".join(stopped)
        raise UsageError(f"ambiguous: {len(stopped)} processes are stopped ({names})", "rldbg attach WHO")
    return str(stopped[0])


def _run_script(at: "Commands", lines: Iterable[str], as_json: bool) -> int:
    """Commands in order, each answer printed; the exit code says whether all of them could be done."""
    from rldbg.live import is_continue

    done: list[dict[str, Any]] = []
    if not as_json:
        print_line(at.here().text)
    lines = [line for line in lines if line.strip()]
    for position, line in enumerate(lines, 1):
        if position == len(lines) and is_continue(line):
            # Nothing follows that would need the next stop.
            for prompt in at.prompts:
                prompt.wait_s = 0.0
        outcome = at.take(line)
        if outcome.leaves:
            break
        done += [answer.to_dict() | {"command": line, "text": answer.text} for answer in outcome.answers]
        if as_json:
            continue
        if outcome.broadcast is not None:
            print_broadcast(outcome.broadcast)
        elif outcome.text:
            print_line(outcome.text)
    if as_json:
        print_json({"answers": done, "processes": [prompt.debuggee.facts for prompt in at.prompts]})
    return ExitCode.OK if all(each["ok"] for each in done) else ExitCode.FINDING


def _run_prompt(at: "Commands") -> int:
    from rldbg.live import Prompt

    Prompt(at, write=print_line, show_broadcast=print_broadcast, history=_history()).run()
    return ExitCode.OK


def _note_what_stays(client: "BrokerClient") -> None:
    left = [facts["who"] for facts in client.request("ps")["processes"] if facts["state"] == "stopped"]
    if left:
        print_note(f"still stopped: {', '.join(left)} (`rldbg continue` resumes them)")


def _lines_of_stdin() -> Iterable[str]:
    return (line.rstrip("\n") for line in sys.stdin)


def _history() -> Path:
    folder = Path(Environment().text("RLDBG_HOME"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / "history"
