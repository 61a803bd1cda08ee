"""The manual pages `man/rldbg.1` and `man/rldbg-VERB.1`, from what `--help` prints, installed with the package."""

import importlib
import inspect
from collections.abc import Iterator

import click

from rldbg.cli.application import application
from rldbg.cli.verbs import GROUPS, VERBS, Verb
from rldbg.version import __version__


def manual() -> Iterator[tuple[str, str]]:
    """Each page's file name and text, in the macros of man(7), without a date: the same source gives the same page."""
    yield "rldbg.1", _overview()
    for verb in VERBS:
        if not verb.hidden:
            yield f"rldbg-{verb.name}.1", _of_verb(verb)


def _title(name: str) -> str:
    return f'.TH {_escaped(name.upper())} 1 "" "rldbg {__version__}" "User Commands"'


def _overview() -> str:
    lines = [
        _title("rldbg"),
        ".SH NAME",
        "rldbg \\- the debugger for distributed RL post\\-training of language models",
        ".SH SYNOPSIS",
        ".B rldbg",
        "VERB [OPTIONS] [ARGUMENTS]",
        ".SH DESCRIPTION",
        _escaped(application.help or ""),
        ".SH OPTIONS",
        *_options(application),
    ]
    for group in GROUPS:
        lines.append(f'.SH "{group.upper()}"')
        for verb in VERBS:
            if verb.group == group and not verb.hidden:
                lines += [".TP", f".BR rldbg\\-{_escaped(verb.name)} (1)", _escaped(verb.summary)]
    lines += [".SH EXIT STATUS", _escaped(application.epilog or "")]
    lines += [".SH SEE ALSO", ".B rldbg help", "shows the documentation."]
    return "\n".join(lines) + "\n"


def _of_verb(verb: Verb) -> str:
    command = importlib.import_module(verb.module).command
    lines = [
        _title(f"rldbg-{verb.name}"),
        ".SH NAME",
        f"rldbg\\-{_escaped(verb.name)} \\- {_escaped(verb.summary)}",
        ".SH USAGE",
        *_command(command, f"rldbg {verb.name}"),
        ".SH SEE ALSO",
        f".BR rldbg (1), \\(lqrldbg help {_escaped(verb.topic)}\\(rq",
    ]
    return "\n".join(lines) + "\n"


def _command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *(piece for piece in command.collect_usage_pieces(context) if piece)])
    yield f'.SS "{_escaped(usage)}"'
    # Python 3.13 takes the indentation out of a docstring by itself, 3.11 does not.
    for paragraph in inspect.cleandoc(command.help or command.short_help or "").split("\n\n"):
        # click marks paragraphs whose lines stay as they are.
        as_it_is = paragraph.startswith("\b")
        yield ".PP"
        yield from ([".nf"] if as_it_is else [])
        yield from (_escaped(line) for line in paragraph.removeprefix("\b\n").splitlines())
        yield from ([".fi"] if as_it_is else [])
    yield from _options(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command(inner, f"{path} {name}")


def _options(command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None:
            yield from (".TP", f".B {_escaped(record[0])}", _escaped(" ".join(record[1].split())) or "\\&")


def _escaped(text: str) -> str:
    """Plain characters: no command of the formatter, no hyphen where an option has a minus."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
