"""`rldbg rollout`: runs a workflow in this process against inference servers, and saves the batch."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import console, is_quiet, print_json, print_line, print_note
from rldbg.core import ExitCode

if TYPE_CHECKING:
    from rldbg.core import Run
    from rldbg.inference.workflows import EpisodeObserver, RolloutReport

# Not part of the command that runs one sample: where results go, what is secret, and what that command sets itself.
_NOT_REPEATED = frozenset({"out", "run_folder", "sample", "as_json", "addrs", "server", "api_key", "limit", "pdb"})


@verb("rollout")
@click.argument("workflow")
@click.argument("overrides", nargs=-1)
@click.option("--data", required=True, metavar="FILE.jsonl|module:dataset", help="Rows to run on.")
@click.option("--n", type=click.IntRange(min=1), default=1, show_default=True, help="Episodes per row.")
@click.option("--limit", type=click.IntRange(min=1), help="Use the first rows only.")
@click.option("--sample", metavar="GROUP[/RUN]", help="Run this sample or group only.")
@click.option(
    "--addrs", metavar="HOST:PORT,...", help="Server addresses.  [default: AREAL_LLM_SERVER_ADDRS, or the one up]"
)
@click.option("--server", metavar="NAME", help="Name of a server (rldbg serve ls).")
@click.option("--api-key", default="", help="Bearer token for the servers.")
@click.option(
    "--protocol", type=click.Choice(["sglang", "openai"]), help="Protocol of the servers.  [default: detected]"
)
@click.option(
    "--shape",
    type=click.Choice(["areal", "agent", "function", "trl"]),
    help="Shape of the workflow.  [default: detected]",
)
@click.option(
    "--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="Argument of the workflow's class. Repeatable."
)
@click.option("--reward", metavar="module:function", help="Reward function of a TRL rollout_func.")
@click.option("--tokenizer", metavar="PATH|tiny", help="Tokenise in this process.  [default: on the servers]")
@click.option(
    "--max-new-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Longest answer, in tokens."
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Temperature of sampling; 0 is greedy.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="Sample from the likeliest tokens that make up this probability.",
)
@click.option(
    "--top-k", type=click.IntRange(min=1), help="Sample from this many likeliest tokens.  [default: no limit]"
)
@click.option(
    "--stop-token-id",
    "stop_token_ids",
    type=click.IntRange(min=0),
    multiple=True,
    help="End an answer at this token. Repeatable.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Base seed; each request gets its own.")
@click.option(
    "--concurrency",
    type=click.IntRange(min=1, max=20000),
    default=64,
    show_default=True,
    help="Episodes at the same time.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds per episode.",
)
@click.option(
    "--request-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds per request.",
)
@click.option(
    "--server-wait",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds to wait for a server's first answer.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the batch.  [default: RUN/generated/batch_data.pt]",
)
@click.option("--run", "run_folder", type=click.Path(path_type=Path), help="Run folder.  [default: a new one]")
@click.option("--trace", is_flag=True, help="Write a timeline of every episode (Chrome trace).")
@click.option(
    "--replay",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="RUN",
    help="Answer from this rollout's recorded exchanges; no server is needed.",
)
@click.option("--fuzz", is_flag=True, help="Inject one fault per episode, and report what the workflow does.")
@click.option("--pdb", is_flag=True, help="Run one episode at a time, and open pdb at errors.")
@click.pass_context
def command(context: click.Context, /, workflow: str, overrides: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Run WORKFLOW (module:name or file.py:name) on data, in one process, against running servers.

    OVERRIDES are AReaL's: rollout.enable_rollout_tracing=True, gconfig.max_new_tokens=64.

    \b
    rldbg rollout my_agent:Flow --data rows.jsonl --limit 16           some rows
    rldbg rollout my_agent:Flow --data rows.jsonl --sample 3/1 --pdb   one, in pdb
    """
    from rldbg.core import Run
    from rldbg.inference.workflows import RolloutRequest, find_servers, rollout

    generation = _merged(context, overrides, options)
    addresses = [] if options["replay"] else find_servers(options["addrs"], options["server"])
    request = RolloutRequest(
        workflow=workflow,
        data=options["data"],
        addresses=addresses,
        settings=_settings(options, generation),
        arguments=dict(_pair(word) for word in options["arguments"]),
        timeout_s=options["timeout"],
        request_timeout_s=options["request_timeout"],
        server_wait_s=options["server_wait"],
        command_of=_single_command(context, workflow, overrides, addresses),
        **{
            name: options[name]
            for name in (
                *("n", "limit", "sample", "shape", "reward", "tokenizer", "seed", "concurrency"),
                *("api_key", "protocol", "out", "trace", "pdb", "replay", "fuzz"),
            )
        },
    )

    with _progress() as observer:
        make_run = partial(_make_run, options["run_folder"])
        report = rollout(request, make_run, load_tokenizer=_tokenizer, observer=observer)
    code = _exit_code(report)
    if Run(report.run).read().get("verb") == "rollout":
        Run(report.run).finish(code)
    print_json(report.to_dict()) if as_json else _show(report)
    if report.hung:
        # A thread that does not end would keep the interpreter waiting at its exit.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _make_run(folder: Path | None) -> "Run":
    """The run folder; what another verb has written of itself into run.json stays."""
    from rldbg.core import Run

    run = Run.create(name="rollout", path=folder)
    command = ["rldbg", *sys.argv[1:]]
    known = run.read()
    if "command" not in known or known.get("verb") == "rollout":
        run.start(command=command, verb="rollout")
    else:
        run.update(rollout={"command": command})
    return run


def _merged(context: click.Context, overrides: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Puts overrides into the options; an option of the command line that contradicts them is a usage error."""
    from rldbg.core import UsageError
    from rldbg.inference.workflows import parse_overrides

    set_by_override, generation = parse_overrides(overrides)
    for name, value in set_by_override.items():
        given = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and options[name] != value:
            raise UsageError(f"--{name.replace('_', '-')} and an override disagree", "give one of them")
        if name in ("n", "concurrency") and value < 1:
            raise UsageError(f"{name} is {value}", "give at least 1")
        options[name] = value
    return generation


def _settings(options: dict[str, Any], generation: dict[str, Any]) -> Any:
    from rldbg.inference.workflows import GenerationSettings

    default = GenerationSettings(
        max_new_tokens=options["max_new_tokens"],
        temperature=options["temperature"],
        top_p=options["top_p"],
        stop_token_ids=options["stop_token_ids"],
    )
    if options["top_k"] is not None:
        default = default.new(top_k=options["top_k"])
    return default.new(**{name: value for name, value in generation.items() if name != "n_samples"})


def _pair(word: str) -> tuple[str, str]:
    name, separator, value = word.partition("=")
    if not separator or not name.isidentifier():
        raise click.BadParameter(f"{word!r} is not NAME=VALUE", param_hint="--arg")
    return name, value


def _tokenizer(name: str) -> Any:
    from rldbg.inference.workflows import NamedAsHuggingFace, pretrained_tokenizer

    if name != "tiny":
        return pretrained_tokenizer(name)
    from rldbg.trainer import load_tokenizer

    return NamedAsHuggingFace(load_tokenizer(name))


def _single_command(
    context: click.Context, workflow: str, overrides: tuple[str, ...], addresses: list[str]
) -> Callable[[str], str]:
    """The command line that runs one sample alone, as the user called us."""
    words = ["rldbg", "rollout", workflow, *overrides]
    for option in context.command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) not in (None, click.core.ParameterSource.DEFAULT)
        if not isinstance(option, click.Option) or name in _NOT_REPEATED or not given:
            continue
        value = context.params[name]
        if option.is_flag:
            words += [option.opts[0]] if value else []
        else:
            for item in value if option.multiple else [value]:
                words += [option.opts[0], str(item)]
    words += ["--addrs", ",".join(addresses)] if addresses else []
    return lambda sample: shlex.join([*words, "--sample", sample])


@contextmanager
def _progress() -> Iterator["EpisodeObserver"]:
    """A bar on a terminal, nothing elsewhere; it is taken away while a debugger has the terminal."""
    from rldbg.inference.workflows import EpisodeObserver

    screen = console(stderr=True)
    # Asked here: it is called on the thread of the network, which knows nothing of options.
    on_wait = EpisodeObserver().on_wait if is_quiet() else print_note
    if not screen.is_terminal:
        yield EpisodeObserver(on_wait=on_wait)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("episodes"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}"),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task("episodes", total=None, failed="")
        failed = 0

        def on_outcome(outcome: Any) -> None:
            nonlocal failed
            failed += outcome.failure is not None
            progress.update(task, advance=1, failed=f"{failed} failed" if failed else "")

        yield EpisodeObserver(
            on_wait=on_wait,
            on_outcome=on_outcome,
            on_pause=lambda paused: progress.stop() if paused else progress.start(),
            on_start=lambda total: progress.update(task, total=total),
        )


def _show(report: "RolloutReport") -> None:
    from rldbg.reports.rollout import notes, results

    for line in notes(report):
        print_note(line)
    for line in results(report):
        print_line(line)


def _exit_code(report: "RolloutReport") -> int:
    if report.interrupted:
        return ExitCode.INTERRUPTED
    if any(fault.verdict.startswith("gave a reward") for fault in report.faults):
        return ExitCode.FINDING
    if report.failures:
        unreachable = all(failure.error == "UnreachableError" for failure in report.failures)
        return ExitCode.UNREACHABLE if unreachable and not report.rows else ExitCode.FINDING
    return ExitCode.OK if report.rows else ExitCode.INCOMPLETE
