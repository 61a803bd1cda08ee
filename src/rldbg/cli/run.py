"""`rldbg run`: run a training script or command with debugging enabled, and say what that changes."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import console, print_json, print_note, show
from rldbg.cli.record_option import RecordingCommand, record_option
from rldbg.core import Environment, ExitCode, RldbgError, Severity, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rldbg.core import Finding, Run
    from rldbg.doctor import Diagnosis, RunSettings
    from rldbg.launch import LaunchExplanation, Request, RunOutcome
    from rldbg.tripwire import WatchSettings

_ATTENDED_WAIT_S = 600.0
_NO = ("", "0", "false", "no", "off")
_NOT_A_FAILURE = (0, ExitCode.INTERRUPTED)
_WATCH_OPTIONS = ("stop", "when", "notify", "keep", "keep_events")
# Parameters that a request has under the same name.
_AS_GIVEN = ("framework", "post_mortem", "name_suffix", "breakpoints", "ray_breakpoints", "legacy", "laptop", "model")


@verb(
    "run",
    cls=RecordingCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]... | -- COMMAND [ARGS]...")
@click.option("--dry-run", is_flag=True, help="Show what would run and what would change; start nothing.")
@click.option("--post-mortem/--no-post-mortem", default=True, help="Enable post-mortem debugging (default).")
@click.option("--steps", type=click.IntRange(min=1), help="Train for this many steps.")
@click.option("--epochs", type=click.IntRange(min=1), help="Train for this many epochs.  [default: 1]")
@click.option("--full-length", is_flag=True, help="Keep the length of the training.")
@click.option("--name-suffix", default="-Debug", show_default=True, help="Append this to the experiment's name.")
@click.option("--set", "set_options", multiple=True, metavar="KEY=VALUE", help="Set an option of the framework.")
@click.option("--env", "set_environment", multiple=True, metavar="NAME=VALUE", help="Set a variable in all processes.")
@click.option("--framework", default="", help="Framework of the script, if not detected.")
@click.option("--run", "run_folder", type=click.Path(path_type=Path), help="Run folder.  [default: a new one]")
@record_option
@click.option("--watch", is_flag=True, help="Check every step as it is recorded; keep only the last steps.")
@click.option(
    "--stop/--note", default=False, help="With --watch: stop all ranks after an event, or report it (default)."
)
@click.option("--when", multiple=True, metavar="EXPRESSION", help="With --watch: also report when this becomes true.")
@click.option("--notify", default="", metavar="COMMAND", help="With --watch: run this shell command at each event.")
@click.option("--watch-rules", default="", metavar="FILE", help="With --watch: read more rules from this file.")
@click.option("--keep", default=8, show_default=True, type=click.IntRange(4), help="With --watch: steps to keep.")
@click.option(
    "--keep-events",
    default=8,
    show_default=True,
    type=click.IntRange(0),
    help="With --watch: events of each rule around which steps are kept, too.",
)
@click.option("--laptop", is_flag=True, help="Run the framework's own trainer without a GPU, with a small model.")
@click.option("--model", default="", metavar="FOLDER", help="With --laptop: the model to take instead of a small one.")
@click.option(
    "--break",
    "breakpoints",
    multiple=True,
    metavar="FILE:LINE",
    help="Set a breakpoint in every process, before its first line runs.",
)
@click.option("--ray-breakpoints", is_flag=True, help="Leave breakpoint() to Ray and its VS Code extension.")
@click.option("--legacy", "--break-driver", is_flag=True, help="RAY_DEBUG=legacy: driver breakpoints on the terminal.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=None,
    is_flag=False,
    flag_value=_ATTENDED_WAIT_S,
    metavar="[SECONDS]",
    help="Hold a crashed process for inspection (600 s).  [default: at a terminal only]",
)
@click.option(
    "--pass-exceptions",
    default="",
    metavar="NAMES",
    help="Exceptions that never hold a process, comma separated; subclasses are included.",
)
@click.option(
    "--listen",
    default="",
    metavar="ADDRESS",
    help="Address of this host for processes on others.  [default: as needed]",
)
@click.option("--redact/--no-redact", "hide", default=True, help="Keep secrets out of the run folder (default).")
@click.option("--skip-kills", is_flag=True, help="Ignore the script's pkill, killall and `ray stop`.")
@click.option("--tame", is_flag=True, hidden=True, help="The former name of --skip-kills.")
@click.option("--doctor/--no-doctor", "ask_doctor", default=True, help="Diagnose failures (default).")
def command(
    command: tuple[str, ...], dry_run: bool, run_folder: Path | None, ask_doctor: bool, as_json: bool, **given: Any
) -> int:
    """Run a training script or command with debugging enabled.

    The script is never edited. --dry-run shows what is changed and how: it runs the script in a sandbox in which the
    commands are stubs.

    \b
    rldbg run --dry-run -- python train.py           show what would change
    rldbg run --record -- python train.py            record every step
    rldbg run --break train.py:88 scripts/train.sh   stop every rank at a line
    """
    from rldbg.doctor import RunSettings
    from rldbg.launch import run_armed

    settings = RunSettings.load(Path(Environment().text("RLDBG_HOME")))
    request = _request(command, settings, given, dry_run=dry_run)
    if dry_run:
        return _explain(request, run_folder, as_json)
    _apply(settings)
    outcome = run_armed(
        request,
        run_folder=run_folder,
        post_mortem_wait_s=_holding_s(given["wait_s"]),
        say=lambda text: print_note(f"rldbg: {text}"),
        announce=announce,
        quiet_stdout=as_json,
        redact_secrets=given["hide"],
        pass_exceptions=tuple(name.strip() for name in given["pass_exceptions"].split(",") if name.strip()),
        listen=given["listen"],
    )
    failed = outcome.exit_code not in _NOT_A_FAILURE and not outcome.asked_to_end
    diagnosis = _diagnosed(outcome, request) if ask_doctor and failed else None
    _conclude(outcome, diagnosis, as_json=as_json)
    return outcome.exit_code


def _request(command: tuple[str, ...], settings: "RunSettings", given: dict[str, Any], *, dry_run: bool) -> "Request":
    """What the options ask for; `given` has them by the names of their parameters."""
    from rldbg.launch import Request, in_one_process, resolve_command

    steps, epochs, full_length, watch = (given[name] for name in ("steps", "epochs", "full_length", "watch"))
    if steps is not None and epochs is not None:
        raise UsageError("--steps and --epochs are mutually exclusive", "give one of them")
    if given["model"] and not given["laptop"]:
        raise UsageError("--model needs --laptop", "elsewhere the model is an option of the framework: --set KEY=VALUE")
    watched = _watched(watch, rules=given["watch_rules"], **{name: given[name] for name in _WATCH_OPTIONS})
    kinds = _kinds(given["record"] or "")  # first: a script that does not exist would be taken for the name of a kind
    argv, script = resolve_command(command, dry_run=dry_run)
    argv, left_out = in_one_process(argv) if given["laptop"] and script is None else (argv, "")
    return Request(
        argv=argv,
        left_out=left_out,
        script=script,
        cwd=Path.cwd(),
        environment=settings.without_unset(Environment().everything()),
        steps=None if full_length else steps,
        # A run is watched to its end.
        epochs=None if full_length or (watch and epochs is None) else epochs or 1,
        set_options=tuple(_pair(text, "--set") for text in given["set_options"]),
        set_environment=tuple(_pair(text, "--env") for text in given["set_environment"]),
        noted_environment=tuple(settings.environment.items()),
        record=given["record"] is not None or watch,
        record_kinds=kinds,
        watch=watched,
        skip_kills=given["skip_kills"] or given["tame"],
        **{name: given[name] for name in _AS_GIVEN},
    )


def _watched(watch: bool, **settings: Any) -> "WatchSettings | None":
    from rldbg.tripwire import WatchSettings

    given = [field.name for field in fields(WatchSettings) if settings.get(field.name, field.default) != field.default]
    if given and not watch:
        option = {"rules": "watch-rules"}.get(given[0], given[0].replace("_", "-"))
        raise UsageError(f"--{option} needs --watch", "add --watch")
    return WatchSettings(**settings) if watch else None


def _apply(settings: "RunSettings") -> None:
    """Prints the settings saved by `rldbg doctor --fix`, and raises limits here: the child inherits them."""
    from rldbg.doctor import raise_soft_limits

    if settings.raise_limits:
        raise_soft_limits()
    for word in settings.words():
        print_note(f"rldbg: {word}: set by rldbg doctor --fix")


def _holding_s(given: float | None) -> float:
    """Without a terminal a crash is not held, unless --wait is given."""
    if given is not None:
        return given
    is_ci = Environment().everything().get("CI", "").strip().lower() not in _NO
    attended = sys.stdin is not None and sys.stdin.isatty() and not is_ci
    return _ATTENDED_WAIT_S if attended else 0.0


def _diagnosed(outcome: "RunOutcome", request: "Request") -> "Diagnosis | None":
    """Why the command failed. A doctor that cannot look (its knowledge is broken) does not change the exit code."""
    from rldbg.doctor import explain_failure

    environment = dict(request.environment) | request.added_environment
    try:
        return explain_failure(outcome.run, environment, outcome.exit_code, ended_by_user=bool(outcome.ended_by))
    except RldbgError as error:
        print_note(f"rldbg: no diagnosis: {error.message}")
        print_note(f"  try: {error.hint}; then rldbg doctor {outcome.run}")
        return None


def _conclude(outcome: "RunOutcome", diagnosis: "Diagnosis | None", *, as_json: bool) -> None:
    """How it ended, on stderr: what the doctor says, what was found about the arming, and where everything is."""
    if as_json:
        print_json(outcome.to_dict() | {"diagnosis": diagnosis.to_dict() if diagnosis else None})
    if diagnosis is not None and not as_json:
        from rldbg.reports.diagnosis import to_terminal

        console(stderr=True).print(to_terminal(diagnosis))
    if outcome.findings and not as_json:
        _note_findings(outcome.findings)
    ended = f"ended by {outcome.ended_by}; " if outcome.ended_by else ""
    print_note(f"rldbg: {ended}exit code {outcome.exit_code}; run folder {outcome.run}")


def announce(explanation: "LaunchExplanation", findings: "Sequence[Finding]", run: "Run") -> None:
    """Prints, before anything starts, what is changed, what was found and where it will be written."""
    from rldbg.reports.launch import announcement_lines

    print_note(f"rldbg: run folder {run.path}")
    for line in announcement_lines(explanation):
        print_note(f"rldbg: {line}")
    notable = [*findings, *(hazard for hazard in explanation.hazards if hazard.severity is not Severity.INFO)]
    if notable:
        _note_findings(notable)


def _note_findings(findings: "Sequence[Finding]") -> None:
    """Prints to stderr: stdout belongs to the command that is run."""
    from rldbg.reports.findings import to_terminal

    console(stderr=True).print(to_terminal(findings))


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"invalid {option}: {text!r} (expected NAME=VALUE)", f"for example {option} name=value")
    return name.lstrip("+"), value


def _kinds(text: str) -> tuple[str, ...]:
    """The kinds of --record by name; none means all that the framework can tell apart."""
    if not text:
        return ()
    from rldbg.recording import named_kinds

    return named_kinds([kind.strip() for kind in text.split(",") if kind.strip()], "--record") or ()


def _explain(request: "Request", run_folder: Path | None, as_json: bool) -> int:
    from rldbg.launch import explain
    from rldbg.reports.launch import explanation_lines

    planned = run_folder or Path(Environment().text("RLDBG_HOME")) / "runs" / f"<time>-{request.name}"
    explanation = explain(request, planned.absolute())
    show(explanation.to_dict(), as_json, lambda: explanation_lines(explanation))
    missing = any(hazard.id in ("launch.program-missing", "launch.module-missing") for hazard in explanation.hazards)
    return ExitCode.OK if explanation.trainings and not explanation.stopped and not missing else ExitCode.FINDING
