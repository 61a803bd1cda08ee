"""`rldbg profile`: profile the workers and steps you name; `timeline` and `report` read what a run wrote."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rldbg.cli.application import verb
from rldbg.cli.output import console, print_json, print_line, print_note, show
from rldbg.core import Environment, ExitCode, UsageError

if TYPE_CHECKING:
    from rldbg.launch import Request
    from rldbg.profiling import Plan, Profiled, ProfileRequest

_TOOLS = ("nsys", "torch", "pyspy", "memory", "phases")
_WAIT_S = 300.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|)")


@verb("timeline", help="Write one Perfetto / Chrome trace with all processes of a run on one clock.")
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="[default: RUN/profiles/trace.json.gz]")
def timeline(run: Path, output: Path | None, as_json: bool) -> int:
    from rldbg.profiling import write_timeline
    from rldbg.reports.profile import timeline_lines

    merged = write_timeline(run, output)
    show(merged.to_dict(), as_json, lambda: timeline_lines(merged))
    if not as_json:
        for note in merged.notes:
            print_note(note)
        print_note("open it at https://ui.perfetto.dev or chrome://tracing; nothing is uploaded")
    return ExitCode.OK


@verb(
    "report",
    help="Report where step time goes by role and phase: idle time, slowest rank, long tails, advice.",
)
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
def report(run: Path, as_json: bool) -> int:
    from rldbg.profiling import make_report
    from rldbg.reports.profile import to_terminal

    made = make_report(run)
    show(made.to_dict(), as_json, lambda: [to_terminal(made)])
    return ExitCode.OK


_READERS = {"timeline": timeline, "report": report}


@verb(
    "profile",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]... | timeline RUN | report RUN")
@click.option("--workers", default="", metavar="PATTERNS", help="Workers to profile: shell patterns, comma separated.")
@click.option("--ranks", default="", metavar="SEL", help="Ranks to profile: 0, 1,3, 0:8:2, policy/0, dp=0.")
@click.option("--steps", default="", metavar="START:STOP", help="Steps to profile, from 1: 3:5 is steps 3 and 4.")
@click.option(
    "--tool",
    type=click.Choice(_TOOLS),
    help="Profiler, or phases alone.  [default: torch; nsys with NRL_NSYS_WORKER_PATTERNS]",
)
@click.option("--opt", "options", multiple=True, metavar="K[=V]", help="Set an option of the tool. Repeatable.")
@click.option("--delay", "delay_s", type=click.FloatRange(min=0), default=0.0, help="Seconds before profiling starts.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for profiles.  [default: RUN/profiles]")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=_WAIT_S,
    show_default=True,
    help="Seconds to wait for reports at the end.",
)
@click.option("--run", "run_folder", type=click.Path(path_type=Path), help="Run folder.  [default: a new one]")
@click.option("--laptop", is_flag=True, help="Run the framework's own trainer without a GPU, with a small model.")
@click.option("--model", default="", metavar="FOLDER", help="With --laptop: the model to take instead of a small one.")
@click.option("--attach", "who", default="", metavar="WHO", help="Profile running processes.")
@click.option("--for", "duration", default="10s", show_default=True, metavar="TIME", help="Duration, with --attach.")
def command(
    command: tuple[str, ...],
    workers: str,
    ranks: str,
    steps: str,
    tool: str | None,
    options: tuple[str, ...],
    delay_s: float,
    output: Path | None,
    wait_s: float,
    run_folder: Path | None,
    laptop: bool,
    model: str,
    who: str,
    duration: str,
    as_json: bool,
) -> int | None:
    """Run COMMAND and profile the named workers in the named steps, without changes to its code.

    \b
    rldbg profile --workers '*policy*' --steps 3:5 --tool torch -- COMMAND
    rldbg profile --laptop --tool phases -- COMMAND
    rldbg profile --attach 'policy/0' --for 20s --tool pyspy
    rldbg profile timeline RUN -o trace.json.gz
    rldbg profile report RUN
    """
    from rldbg.profiling import ProfileRequest

    wanted = ProfileRequest(workers, ranks, steps, tool or "", options, delay_s)
    if model and not laptop:
        raise UsageError("--model needs --laptop", "elsewhere the model is an option of your command")
    if laptop and (who or (command and command[0] in _READERS)):
        raise UsageError("--laptop needs a command to run", "rldbg profile --laptop -- COMMAND")
    if who:
        if command:
            raise UsageError("--attach and a command are mutually exclusive", "give one of them")
        return _attach(who, wanted, duration, output, run_folder, as_json)
    if command and command[0] in _READERS:
        arguments = [*command[1:], *(["--json"] if as_json else [])]
        result: int = _READERS[command[0]].main(
            arguments,
            prog_name=f"rldbg profile {command[0]}",
            standalone_mode=False,
            help_option_names=click.get_current_context().help_option_names,
        )
        return result
    if not command:
        raise UsageError(
            "nothing to profile",
            "rldbg profile --workers '*policy*' --tool torch -- COMMAND, or --attach WHO --for 20s",
        )
    return _launch(
        _launch_request(command, laptop=laptop, model=model),
        wanted,
        output=output,
        run_folder=run_folder,
        wait_s=wait_s,
        as_json=as_json,
    )


def _launch_request(command: tuple[str, ...], *, laptop: bool = False, model: str = "") -> "Request":
    """Runs the command unchanged: another name or length would profile a different run."""
    from rldbg.launch import Request, in_one_process, resolve_command

    argv, script = resolve_command(command)
    argv, left_out = in_one_process(argv) if laptop and script is None else (argv, "")
    return Request(
        argv=argv,
        left_out=left_out,
        script=script,
        cwd=Path.cwd(),
        environment=Environment().everything(),
        post_mortem=False,
        epochs=None,
        name_suffix="",
        laptop=laptop,
        model=model,
    )


def _launch(
    launch: "Request",
    wanted: "ProfileRequest",
    *,
    output: Path | None,
    run_folder: Path | None,
    wait_s: float,
    as_json: bool,
) -> int:
    from rldbg.cli.run import announce
    from rldbg.profiling import run_profiled

    profiled = run_profiled(
        launch,
        wanted,
        run_folder=run_folder,
        output=output,
        wait_s=wait_s,
        say=lambda text: print_note(f"rldbg: {text}"),
        announce=announce,
        planned=_say_plan,
        quiet_stdout=as_json,
    )
    if as_json:
        print_json(profiled.to_dict())
    _say_outcome(profiled)
    return profiled.exit_code


def asked_by_variables() -> bool:
    """Whether NRL_NSYS_WORKER_PATTERNS asks for a profile of this command, which is not inside one yet."""
    environment = Environment()
    return bool(environment.names("NRL_NSYS_WORKER_PATTERNS")) and not environment.text("RLDBG_PROFILING")


def profile_this_command(run_folder: Path | None) -> int:
    """Runs this command line again, profiled, as the documented variables ask for."""
    import sys

    from rldbg.profiling import ProfileRequest

    again = (sys.executable, "-m", "rldbg", *sys.argv[1:])
    return _launch(
        _launch_request(again), ProfileRequest(), output=None, run_folder=run_folder, wait_s=_WAIT_S, as_json=False
    )


def _say_plan(plan: "Plan") -> None:
    from rldbg.reports.profile import plan_lines

    for line in plan_lines(plan):
        print_note(f"rldbg: {line}")


def _say_outcome(profiled: "Profiled") -> None:
    """Prints to stderr: stdout belongs to the command that was run."""
    from rldbg.reports.findings import to_terminal
    from rldbg.reports.profile import closing_lines, outcome_lines

    for line in outcome_lines(profiled):
        print_note(f"rldbg: {line}")
    if profiled.findings:
        console(stderr=True).print(to_terminal(profiled.findings))
    for line in closing_lines(profiled):
        print_note(f"rldbg: {line}")


def _attach(
    who: str, wanted: "ProfileRequest", duration: str, output: Path | None, run_folder: Path | None, as_json: bool
) -> int:
    from rldbg.live import connect_target
    from rldbg.profiling import make_plan, profile_running

    seconds = read_duration(duration)
    with connect_target(run_folder, None) as client:
        folder = output if output is not None else client.run / "profiles"
        request = type(wanted)(workers="*", tool=wanted.tool or "pyspy", options=wanted.options)
        plan = make_plan(request, folder=folder, run=client.run)
        attached = profile_running(
            client, who, plan=plan, seconds=seconds, say=lambda text: print_note(f"rldbg: {text}")
        )
    if as_json:
        print_json(attached.to_dict())
        return attached.exit_code
    for process in attached.processes:
        for file in process.get("files") or []:
            print_line(f"{process['who']}: {file}")
        if not process.get("files"):
            print_note(f"rldbg: {process['who']}: {process.get('error') or process.get('reason') or 'no profile'}")
    return attached.exit_code


def read_duration(text: str) -> float:
    """Seconds of `20s`, `2m`, `500ms` or a bare number."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"invalid duration: --for {text!r}", "for example --for 20s, --for 2m")
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}[match[2]]
