"""`rldbg config show`: every setting and its origin, or a recipe with rldbg's blocks resolved and checked."""

import importlib
from collections.abc import Mapping
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

import click

from rldbg.cli.application import verb
from rldbg.cli.groups import CommandGroup
from rldbg.cli.option_sources import Setting, project_settings, settings_of
from rldbg.cli.output import print_json, print_line, print_note, print_result
from rldbg.cli.verbs import VERBS
from rldbg.core import VARIABLES, Environment, redact


@click.group("config", cls=CommandGroup)
def command() -> None:
    """Show the resolved configuration and where each value comes from.

    \b
    rldbg config show                      every setting
    rldbg config show arithmetic steps=3   a recipe
    """


@verb("show")
@click.argument("recipe", required=False, type=click.Path())
@click.argument("overrides", nargs=-1)
@click.option("--redact/--no-redact", "hide", default=True, help="Hide secrets, or print them.", show_default=True)
def show(recipe: str | None, overrides: tuple[str, ...], hide: bool, as_json: bool) -> None:
    """Show all settings, or RECIPE composed and resolved with OVERRIDES as for `train`."""
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
    from rldbg.reports.configuration import settings_table

    print_result(settings_table(body))


def _show_recipe(recipe: str, overrides: tuple[str, ...], hide: bool, as_json: bool) -> None:
    from rldbg.core import compose, resolve_block
    from rldbg.recording import (
        RolloutWorkerBlock,
        debug_block_from_environment,
        origins_of,
        parse_debug_block,
        parse_rollout_worker_block,
    )
    from rldbg.reports.configuration import recipe_text

    config = compose(recipe, overrides)
    resolved: dict[str, Any] = {}
    for block in config:
        ours = block == "debug"
        resolved[str(block)] = resolve_block(config, str(block), source=recipe, lenient=not ours)
    written = resolved.get("debug")
    debug = debug_block_from_environment(Environment(), parse_debug_block(written, source=recipe))
    origins: dict[str, str] = {}
    if written is not None or debug.enable_data_dump:
        resolved["debug"] = debug.to_dict()
        origins = {f"debug.{key}": origin for key, origin in origins_of(debug, written).items()}
    if resolved.get("rollout_worker") is not None:
        worker = asdict(parse_rollout_worker_block(resolved["rollout_worker"], source=recipe))
        unset = asdict(RolloutWorkerBlock())
        resolved["rollout_worker"] = {
            key: worker.get(key, value)
            for key, value in resolved["rollout_worker"].items()
            if key not in unset or worker[key] != unset[key]
        }
    shown = redact(resolved) if hide else resolved
    kinds = sorted(debug.kinds()) if debug.enable_data_dump else []
    if as_json:
        print_json({"recipe": shown, "records": kinds, "origins": origins})
        return
    print_line(recipe_text(shown, origins))
    print_note("records: " + (", ".join(kinds) or "nothing") + _why_nothing(debug.enable_data_dump, resolved))


def _why_nothing(is_on: bool, recipe: Mapping[str, Any]) -> str:
    if is_on:
        return ""
    near = [] if "debug" in recipe else get_close_matches("debug", recipe, 1, 0.7)
    return f" (no block `debug`; is {near[0]} a misspelling of it?)" if near else " (debug.enable_data_dump is off)"
