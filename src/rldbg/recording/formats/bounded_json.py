"""JSON from files nobody vouches for: UTF-8 only, depth and numbers bounded by the parser, one kind of error."""

import json
from typing import Any

from rldbg.recording.formats.malformed import Malformed


def parse_json(text: bytes, *, unique_keys: bool = False) -> Any:
    """The value of a JSON text. Bare NaN and Infinity, and numbers that overflow to infinity, are accepted."""
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"text that is not UTF-8 at byte {error.start}") from error
    try:
        return json.loads(decoded, object_pairs_hook=_unique if unique_keys else None)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise Malformed("JSON that is nested too deeply") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise Malformed("a JSON object names one key twice")
    return result
