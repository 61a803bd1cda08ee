"""Where an option's value comes from: flag, then environment, then the project file, then its default.

The project file is the nearest `rldbg.toml` upwards of the working directory (or RLDBG_CONFIG), one table per verb:

    [show]
    layout = "rldbg"
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from rldbg.core import Environment, UsageError


def project_file() -> Path | None:
    named = Environment().text("RLDBG_CONFIG")
    if named:
        return Path(named)
    here = Path.cwd()
    return next((file for folder in (here, *here.parents) if (file := folder / "rldbg.toml").is_file()), None)


def project_settings() -> dict[str, Any]:
    """The project file as click's default map; empty when there is none."""
    file = project_file()
    if file is None:
        return {}
    import tomllib  # most projects have no such file

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read the project file {file}: {error.strerror}", "create it, or unset RLDBG_CONFIG"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{file} is not valid TOML: {error}", "fix the file, or set RLDBG_CONFIG to another one"
        ) from error


class Setting(NamedTuple):
    """One option of one verb: its value when no flag is given, and where that value comes from."""

    name: str
    value: Any
    origin: str
    variable: str


def settings_of(command: click.Command, defaults: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Setting]:
    """Every option of a verb and of its sub-commands."""
    if isinstance(command, click.Group):
        for name, sub_command in sorted(command.commands.items()):
            yield from settings_of(sub_command, defaults.get(name) or {}, (*path, name))
    environment = Environment()
    for option in command.params:
        if not isinstance(option, click.Option) or option.name is None or not option.expose_value or option.hidden:
            continue
        variable = "_".join(["RLDBG", *path, option.name]).upper().replace("-", "_")
        value, origin = option.default, "default"
        if option.name in defaults:
            value, origin = defaults[option.name], f"project file {project_file()}"
        if environment.option(variable) is not None:
            value, origin = environment.option(variable), "environment"
        yield Setting(".".join([*path, option.name]), value, origin, variable)
