"""The configuration: a table of settings, and a recipe as YAML with the origin of each value."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from rldbg.reports.tables import Table

_KEY = re.compile(r"(?P<indent> *)(?P<key>[^\s#:-][^:]*):(?: |$)")


def settings_table(settings: Iterable[Mapping[str, Any]]) -> Table:
    """One row per setting; what differs from its default is bold."""
    table = Table("setting", "value", "origin", "variable", box=None, header_style="bold")
    for row in settings:
        style = "" if row["origin"] == "default" else "bold"
        table.add_row(row["name"], _text(row["value"]), row["origin"], row["variable"], style=style)
    return table


def _text(value: Any) -> str:
    # click 8.2 has a sentinel of that name for options without a default.
    return "" if value is None or "UNSET" in str(value).upper() else str(value)


def recipe_text(recipe: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """YAML, with a comment after every value that does not come from the recipe."""
    lines: list[str] = []
    path: list[str] = []
    for line in yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True, width=math.inf).splitlines():
        found = _KEY.match(line)
        if found:
            path = [*path[: len(found["indent"]) // 2], found["key"]]
        origin = origins.get(".".join(path), "recipe") if found else "recipe"
        lines.append(line if origin == "recipe" else f"{line}  # {origin}")
    return "\n".join(lines)
