"""`rldbg broker`: start and stop the broker of a run by hand."""

import os
import shlex
import signal
import subprocess
from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_line, print_note, show
from rldbg.core import Environment, Run, UsageError, explained_as


@verb(
    "broker",
    hidden=True,
    short_help="Start and stop the broker of a run by hand.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@click.argument("action", type=click.Choice(["start", "stop", "env"]))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option("--run", "run_dir", type=click.Path(path_type=Path, file_okay=False), help="Run folder.")
@click.option(
    "--listen", default="127.0.0.1", show_default=True, help="Address to listen on for agents on other hosts."
)
@click.option("--port", default=0, help="Port to listen on.  [default: a free one]")
@click.option("--post-mortem", "post_mortem_s", default=0.0, help="Seconds to hold a crashed process for inspection.")
@click.option("--ray-breakpoints", is_flag=True, help="Leave breakpoint() in Ray processes to Ray's own debugger.")
@click.option("--no-redact", is_flag=True, help="Write values into crash files as they are, secrets included.")
def command(
    action: str,
    arguments: tuple[str, ...],
    run_dir: Path | None,
    listen: str,
    port: int,
    post_mortem_s: float,
    ray_breakpoints: bool,
    no_redact: bool,
    as_json: bool,
) -> int:
    """Start and stop the broker of a run by hand.

    \b
    rldbg broker start --run DIR -- COMMAND   run COMMAND armed, the broker ends with it
    rldbg broker start --run DIR              a broker that stays; then: eval "$(rldbg broker env --run DIR)"
    rldbg broker stop --run DIR
    """
    from rldbg.agent import Arming, armed_environment
    from rldbg.live import find_run, start_broker, stop_broker

    arming = Arming(post_mortem_wait_s=post_mortem_s, ray_breakpoints=ray_breakpoints, redact=not no_redact)
    if action == "stop":
        stop_broker(find_run(run_dir))
        return 0
    if action == "env":
        for name, value in armed_environment(find_run(run_dir), arming).items():
            print_line(f"export {name}={shlex.quote(value)}")
        return 0
    if arguments and arguments[0].startswith("-"):
        raise UsageError(f"unknown option: {arguments[0]!r}", "put the command after --")
    run = Run.create(name=Path(arguments[0]).name if arguments else "broker", path=run_dir)
    address = start_broker(run, host=listen, port=port, owner_pid=os.getpid() if arguments else 0)
    where = {"run": str(run.path.resolve()), "host": address.host, "port": address.port}
    if not arguments:
        show(where, as_json, lambda: [f"broker at {address.place}, run {run.path}"])
        return 0
    print_note(f"broker at {address.place}; rldbg ps --run {run.path}")
    code = _run_armed(list(arguments), Environment().everything() | armed_environment(run.path, arming))
    stop_broker(run.path)
    return code


def _run_armed(command_line: list[str], environment: dict[str, str]) -> int:
    """Runs the command in the foreground; interrupts reach it as they would without us."""
    with explained_as(UsageError, OSError, f"cannot run {command_line[0]}", "check the command after --"):
        child = subprocess.Popen(command_line, env=environment)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    code = child.wait()
    return code if code >= 0 else 128 - code
