"""`rldbg config show`: every setting with its origin, or a recipe with the blocks we own resolved and checked."""

import importlib
import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line, print_note, print_result
from rldbg.cli.settings import Setting, project_settings, settings_of
from rldbg.cli.verbs import VERBS
from rldbg.core import VARIABLES, Environment, redact

_KEY = re.compile(r"(?P<indent> *)(?P<key>[^\s#:-][^:]*):(?: |$)")


@click.group("config")
def command() -> None:
    """Show the resolved configuration and where each value comes from."""


@verb("show")
@click.argument("recipe", required=False, type=click.Path())
@click.argument("overrides", nargs=-1)
@click.option("--redact/--no-redact", "hide", default=True, help="Hide secrets (default) or show them.")
def show(recipe: str | None, overrides: tuple[str, ...], hide: bool, as_json: bool) -> None:
    """Without RECIPE: all settings. With one: what it means, composed and resolved; OVERRIDES as for `train`."""
    if recipe is None:
        _show_settings(as_json)
    else:
        _show_recipe(recipe, overrides, hide, as_json)


command.add_command(show)


def _show_settings(as_json: bool) -> None:
    defaults = project_settings()
    settings: list[Setting] = []
    for entry in VERBS:
        loaded: click.Command = importlib.import_module(entry.module).command
        settings.extend(settings_of(loaded, defaults.get(entry.name) or {}, (entry.name,)))
    environment = Environment()
    for variable in VARIABLES:
        origin = "environment" if environment.is_set(variable.name) else "default"
        settings.append(Setting(variable.name, environment.text(variable.name), origin, variable.name))
    body = [setting._asdict() | {"value": redact(setting.value, setting.name)} for setting in settings]
    if as_json:
        print_json({"settings": body})
        return
    from rich.table import Table

    table = Table("setting", "value", "origin", "variable", box=None, header_style="bold")
    for row in body:
        style = "" if row["origin"] == "default" else "bold"
        table.add_row(row["name"], _text(row["value"]), row["origin"], row["variable"], style=style)
    print_result(table)


def _text(value: Any) -> str:
    return "" if value is None or "UNSET" in str(value).upper() else str(value)


def _show_recipe(recipe: str, overrides: tuple[str, ...], hide: bool, as_json: bool) -> None:
    import yaml

    from rldbg.core.recipe import compose, resolve_block
    from rldbg.recording.configuration import (
        debug_block_from_environment,
        origins_of,
        parse_debug_block,
        parse_rollout_worker_block,
    )

    config = compose(recipe, overrides)
    resolved: dict[str, Any] = {}
    for block in config:
        ours = block == "debug"
        resolved[str(block)] = resolve_block(config, str(block), source=recipe, lenient=not ours)
    written = resolved.get("debug")
    debug = debug_block_from_environment(Environment(), parse_debug_block(written, source=recipe))
    origins: dict[str, str] = {}
    if written is not None or debug.enable_data_dump:
        resolved["debug"] = debug.model_dump(mode="json")
        origins = {f"debug.{key}": origin for key, origin in origins_of(debug, written).items()}
    if resolved.get("rollout_worker") is not None:
        worker = parse_rollout_worker_block(resolved["rollout_worker"], source=recipe)
        resolved["rollout_worker"] = worker.model_dump(mode="json", exclude_defaults=True)
    shown = redact(resolved) if hide else resolved
    kinds = sorted(debug.kinds()) if debug.enable_data_dump else []
    if as_json:
        print_json({"recipe": shown, "records": kinds, "origins": origins})
        return
    text = yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=math.inf)
    print_line(_with_origins(text.rstrip("\n"), origins))
    print_note("records: " + (", ".join(kinds) or "nothing") + _why_nothing(debug.enable_data_dump, resolved))


def _why_nothing(is_on: bool, recipe: Mapping[str, Any]) -> str:
    if is_on:
        return ""
    near = [] if "debug" in recipe else get_close_matches("debug", recipe, 1, 0.7)
    return f" (there is no block debug: did you mean it by {near[0]}?)" if near else " (debug.enable_data_dump is off)"


def _with_origins(text: str, origins: Mapping[str, str]) -> str:
    """The YAML with a comment behind every value of ours that the recipe does not say."""
    lines: list[str] = []
    path: list[str] = []
    for line in text.splitlines():
        found = _KEY.match(line)
        if found:
            path = [*path[: len(found["indent"]) // 2], found["key"]]
        origin = origins.get(".".join(path), "recipe") if found else "recipe"
        lines.append(line if origin == "recipe" else f"{line}  # {origin}")
    return "\n".join(lines)
