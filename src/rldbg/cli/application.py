"""The `rldbg` command: lazily loaded verbs, and the one place where errors become messages and exit codes."""

import errno
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from rldbg.cli.groups import CommandGroup, NoCommandError
from rldbg.cli.verbs import GROUPS, VERBS, documentation
from rldbg.core import ExitCode, IncompleteDataError, RldbgError
from rldbg.version import __version__

_PACKAGES = ("torch", "ray", "transformers", "numpy", "debugpy", "py-spy", "mcp")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ELOOP, errno.ENAMETOOLONG)


class LazyVerbs(CommandGroup):
    """A group that knows its verbs by name and imports one only when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb.name for verb in VERBS if not verb.hidden]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for verb in VERBS:
            if verb.name == cmd_name:
                command: click.Command = importlib.import_module(verb.module).command
                _name_variables(command, ("RLDBG", verb.name))
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and not any(verb.name == name for verb in VERBS):
            from difflib import get_close_matches

            near = get_close_matches(name, [verb.name for verb in VERBS], n=1)
            hint = f" Did you mean `rldbg {near[0]}`?" if near else " `rldbg --help` lists the verbs."
            raise click.UsageError(f"Unknown verb: {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group in GROUPS:
            rows = [(verb.name, verb.summary) for verb in VERBS if verb.group == group and not verb.hidden]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)


def _name_variables(command: click.Command, path: tuple[str, ...]) -> None:
    """Each option is read from the variable that has the option's own name, too: --wait of `run` from RLDBG_RUN_WAIT.
    click derives it from the name of the parameter, which users do not know."""
    for name, below in getattr(command, "commands", {}).items():
        _name_variables(below, (*path, name))
    for option in command.params:
        longest = next((word for word in option.opts if word.startswith("--")), None)
        if isinstance(option, click.Option) and longest is not None and option.envvar is None:
            option.envvar = "_".join([*path, longest.removeprefix("--")]).upper().replace("-", "_")


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        for line in version_lines():
            click.echo(line)
        ctx.exit()


def _print_completion(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value and not ctx.resilient_parsing:
        from click.shell_completion import get_completion_class

        shell = get_completion_class(value)
        assert shell is not None
        click.echo(shell(application, {}, "rldbg", "_RLDBG_COMPLETE").source())
        ctx.exit()


@click.command(
    "rldbg",
    cls=LazyVerbs,
    epilog="Every verb takes --help and --json. Exit codes: 0 success, 1 difference or finding, 2 usage error, "
    "3 missing prerequisite, 4 incomplete data, 5 unreachable.",
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "RLDBG"},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print the versions of rldbg and related packages, then exit.",
)
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    is_eager=True,
    expose_value=False,
    callback=_print_completion,
    help="Print the completion script for a shell, then exit.",
)
def application() -> None:
    """The debugger for distributed RL post-training of language models."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; print errors as text, or as JSON if --json was given."""
    arguments = list(arguments)
    wants_json = "--json" in arguments[: arguments.index("--")] if "--" in arguments else "--json" in arguments
    try:
        return _invoke(arguments)
    except RldbgError as error:
        return _fail(error.to_dict() | _page_of(arguments), error.exit_code, wants_json)
    except click.UsageError as error:
        if isinstance(error, NoCommandError) and not wants_json:
            return _explain(error)
        path = error.ctx.command_path if error.ctx else "rldbg"
        body = {"kind": "usage", "message": error.format_message(), "hint": f"see `{path} --help`"}
        return _fail(body, ExitCode.USAGE, wants_json)
    except (KeyboardInterrupt, click.Abort):
        return _fail({"kind": "interrupted", "message": "interrupted", "hint": ""}, ExitCode.INTERRUPTED, wants_json)
    except BrokenPipeError:
        # The reader of stdout has closed it (`rldbg show | head`): do not flush again.
        _discard_output()
        return ExitCode.OK
    except OSError as error:
        return _explain_system_error(error, wants_json)
    except Exception as error:  # noqa: BLE001 - a bug of ours must still end in a clear message
        return _report_bug(error, wants_json)


def _explain_system_error(error: OSError, wants_json: bool) -> int:
    """A full disk and a file that may not be read are the user's to change; any other is a bug of ours."""
    from rldbg.cli.output import STDOUT

    if error.errno in _NO_ACCESS and error.filename is not None:
        body = {
            "kind": IncompleteDataError.kind,
            "message": f"{os.fsdecode(error.filename)}: {error.strerror}",
            "hint": "check the path, and who may read and write it",
        }
        return _fail(body, ExitCode.INCOMPLETE, wants_json)
    if error.errno not in _NO_ROOM:
        return _report_bug(error, wants_json)
    if error.filename == STDOUT:
        wants_json = False
        _discard_output()
    what = f"{error.filename or 'a file'} could not be written: {error.strerror}"
    body = {"kind": "prerequisite", "message": what, "hint": "free space there, or choose another folder"}
    return _fail(body, ExitCode.PREREQUISITE, wants_json)


def _discard_output() -> None:
    """What is still buffered for stdout cannot be written: Python must not try again as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _invoke(arguments: Sequence[str]) -> int:
    from rldbg.cli.option_sources import project_settings

    try:
        result: Any = application.main(
            list(arguments), prog_name="rldbg", standalone_mode=False, default_map=project_settings()
        )
    except SystemExit as end:
        # click turns a closed output into exit code 1, which here would mean "difference found".
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        raise
    return int(result) if isinstance(result, int) else ExitCode.OK


def _page_of(arguments: Sequence[str]) -> dict[str, str]:
    """The page of the verb that was called, which `rldbg help` shows and which is part of the package."""
    topics = [verb.topic for verb in VERBS if arguments and verb.name == arguments[0]]
    return {"topic": topics[0], "page": str(documentation() / f"{topics[0]}.md")} if topics else {}


def _explain(error: click.UsageError) -> int:
    """Show the help of a group that was called without a command."""
    from rldbg.cli.output import print_note

    print_note(error.format_message())
    return ExitCode.USAGE


def _fail(error: dict[str, str], code: int, wants_json: bool) -> int:
    from rldbg.cli.output import print_error

    print_error(error, as_json=wants_json)
    return int(code)


def _report_bug(error: Exception, wants_json: bool) -> int:
    import tempfile
    import traceback

    from rldbg.core import redact_text

    with tempfile.NamedTemporaryFile("w", prefix="rldbg-bug-", suffix=".txt", delete=False) as file:
        file.write(redact_text("".join(traceback.format_exception(error))))
    body = {
        "kind": "internal",
        "message": f"a bug in rldbg: {type(error).__name__}: {error}",
        "hint": f"the traceback is in {file.name}; please report it",
    }
    return _fail(body, ExitCode.INTERNAL, wants_json)


def _note_quiet(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    from rldbg.cli.output import QUIET

    ctx.meta[QUIET] = value


def verb(name: str, **settings: Any) -> Callable[[Callable[..., int | None]], click.Command]:
    """Declare a verb: a click command with `--json`, whose function returns an exit code (None is 0)."""

    def decorate(function: Callable[..., int | None]) -> click.Command:
        with_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
        quiet = click.option(
            "--quiet",
            is_flag=True,
            expose_value=False,
            callback=_note_quiet,
            help="Print the result and errors only: no notes, no progress.",
        )
        command: click.Command = click.command(name, **settings)(with_json(quiet(function)))  # type: ignore[no-untyped-call]
        return command

    return decorate


def version_lines() -> Iterator[str]:
    """The version alone on the first line, as scripts expect it; nothing is imported to find the others."""
    import platform

    yield f"rldbg {__version__}"
    yield f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    from rldbg.agent.profiling import installed_version
    from rldbg.frameworks import frameworks

    known = {name: installed_version(name) for name in _PACKAGES}
    # Where another project has a framework's name on the public index, the name says nothing.
    others = [each.distribution for each in frameworks() if each.modules and not each.only_from]
    found = known | {name: installed_version(name) for name in others if name != "rldbg"}
    yield ", ".join(f"{name} {number}" for name, number in found.items() if number)
    missing = [name for name, number in known.items() if not number]
    if missing:
        yield f"not installed: {', '.join(missing)}"
