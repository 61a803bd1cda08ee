"""Rules of the tripwire: data that is read, checked and documented, never code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from rldbg.core import UsageError, setting, validated

Moves = Literal["up", "down", "either", "declines", "not-finite"]


@dataclass(frozen=True, slots=True)
class WatchRule:
    """When a measure is unusual, why that matters, and what to look at."""

    id: str
    measure: str
    moves: Moves
    cause: str
    look: str = "rldbg show {recording} --step {step}"
    sigmas: float = setting(8.0, above=0)
    factor: float = setting(1.0, at_least=1)
    least: float = setting(0.0, at_least=0)
    in_a_row: int = setting(1, at_least=1)
    history: int = setting(8, at_least=4)
    per_1000_steps: float = 0.0
    """Stated false-alarm rate."""


def read_rules(path: Path) -> tuple[WatchRule, ...]:
    """The built-in rules, with those of a file added, or instead of those with the same id."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the rules {path}: {error.strerror}", "give a YAML file with rules") from error
    own = _parsed(text, str(path))
    return tuple(({rule.id: rule for rule in RULES} | {rule.id: rule for rule in own}).values())


def _parsed(text: str, source: str) -> tuple[WatchRule, ...]:
    import yaml

    try:
        entries: Any = yaml.safe_load(text) or []
    except yaml.YAMLError as error:
        raise UsageError(f"{source} is not valid YAML: {error}", "fix the file") from error
    if not isinstance(entries, Iterable) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{source} is not a list of rules", "see docs/watch.md for their form")
    return tuple(validated(WatchRule, entry, source=source, page="watch.md") for entry in entries)


RULES = _parsed(files("rldbg.tripwire").joinpath("rules.yaml").read_text(encoding="utf-8"), "rules.yaml")
