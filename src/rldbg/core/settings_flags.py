"""A group of settings as the command line of a process that rldbg starts: written by one side, read by the other."""

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from rldbg.core.settings import check_values, described

T = TypeVar("T")


def as_flags(settings: Any) -> list[str]:
    """The words that `read_flags` makes the same settings of; what has its default is left out."""
    check_values(settings)
    words: list[str] = []
    for item in fields(settings):
        value, flag = getattr(settings, item.name), "--" + item.name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value != item.default:
            words += [f"{flag}={each}" for each in (value if isinstance(value, tuple) else (value,))]
    return words


def read_flags(group: type[T], program: str, words: Sequence[str] | None = None) -> T:
    """The settings on a command line (default: this process's), with `--help` from the strings under the fields."""
    parser, hints = ArgumentParser(program), get_type_hints(group)
    for name, default, meaning in described(group):
        kind = hints[name]
        options: dict[str, Any] = {"help": meaning, "required": default is MISSING}
        if kind is bool:
            options["action"] = "store_true"
        elif get_origin(kind) is Literal:
            options["choices"] = get_args(kind)
        elif get_origin(kind) is tuple:
            options["action"] = "append"
        else:
            options["type"] = next(each for each in (*get_args(kind), kind) if each is not type(None))
        parser.add_argument("--" + name.replace("_", "-"), **options)
    given = {
        name: value
        for name, value in vars(parser.parse_args(words)).items()
        if value is not None and value is not False
    }
    settings = group(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
    check_values(settings)
    return settings
