"""Results as JSON text, for `--json` and for the web application."""

import json
import math
from collections.abc import Mapping
from typing import Any

# Represents an infinity until the text is made; no real text contains it.
_HUGE = "\x00inf\x00"


def to_json(body: Any) -> str:
    """JSON has no NaN and no infinity: they become null and ±1e999. Lone surrogates are escaped."""
    try:
        return json.dumps(body, allow_nan=False, default=_plain)
    except ValueError:  # there are numbers that JSON does not have: the careful way takes ten times as long
        text = json.dumps(_finite(body))
    return text.replace(json.dumps(_HUGE), "1e999").replace(json.dumps("-" + _HUGE), "-1e999")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return None if math.isnan(value) else ("" if value > 0 else "-") + _HUGE
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, str | int | None):
        return value
    return _finite(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return str(value)
