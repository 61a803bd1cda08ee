"""Rules of the tripwire: data that is read, checked and documented, never code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from rldbg.core import UsageError, setting, validated

_SHOW = "rldbg show {recording} --step {step}"

Moves = Literal["up", "down", "either", "declines", "not-finite"]


@dataclass(frozen=True, slots=True)
class WatchRule:
    """When a measure is unusual, why that matters, and what to look at."""

    id: str
    measure: str
    moves: Moves
    cause: str
    look: str = _SHOW
    look_if_logged: str = ""
    """What to look at where the step holds nothing about the measure but a value that was logged."""
    sigmas: float = setting(8.0, above=0)
    log_sigmas: float = setting(0.0, at_least=0)
    """Also so many times the usual change of the logarithm, where history and value are positive; 0: not asked for."""
    factor: float = setting(1.0, at_least=1)
    least: float = setting(0.0, at_least=0)
    in_a_row: int = setting(1, at_least=1)
    steep_sigmas: float = setting(0.0, at_least=0)
    """Two steps in a row are enough where each is so far off; 0: never."""
    history: int = setting(8, at_least=4)
    per_1000_steps: float = 0.0
    """Stated false-alarm rate."""

    def look_at(self, recording: str, step: int, *, is_logged: bool = False) -> str:
        """The command that looks at a step."""
        command = self.look_if_logged if is_logged and self.look_if_logged else self.look
        return command.format(recording=recording, step=step)


@cache
def built_in_rules() -> tuple[WatchRule, ...]:
    """Those of rules.yaml, read when a run is watched."""
    return _parsed(files("rldbg.tripwire").joinpath("rules.yaml").read_text(encoding="utf-8"), "rules.yaml")


def read_rules(path: Path) -> tuple[WatchRule, ...]:
    """The built-in rules, with those of a file added, or instead of those with the same id."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the rules {path}: {error.strerror}", "give a YAML file with rules") from error
    own = _parsed(text, str(path))
    return tuple(({rule.id: rule for rule in built_in_rules()} | {rule.id: rule for rule in own}).values())


def _parsed(text: str, source: str) -> tuple[WatchRule, ...]:
    import yaml

    try:
        entries: Any = yaml.safe_load(text) or []
    except yaml.YAMLError as error:
        raise UsageError(f"{source} is not valid YAML: {error}", "fix the file") from error
    if not isinstance(entries, Iterable) or not all(isinstance(entry, dict) for entry in entries):
        raise UsageError(f"{source} is not a list of rules", "see docs/watch.md for their form")
    rules = tuple(validated(WatchRule, entry, source=source, page="watch.md") for entry in entries)
    for rule in rules:
        try:
            [rule.look_at("RECORDING", 0, is_logged=is_logged) for is_logged in (False, True)]
        except (KeyError, IndexError, ValueError) as error:
            raise UsageError(
                f"{source}: invalid look of {rule.id}: {rule.look!r}",
                "write {recording} and {step} for the place of an event, and other braces twice: {{ }}",
            ) from error
    return rules
