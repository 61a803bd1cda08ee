"""JSON from untrusted files: UTF-8 only, depth and numbers bounded, one kind of error."""

import json
import re
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed

# Readers walk what was parsed by recursion. How deep the parser itself goes depends on the version of Python.
_MAX_DEPTH = 256
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def parse_json(text: bytes, *, unique_keys: bool = False) -> Any:
    """The value of a JSON text. Bare NaN and Infinity, and numbers that overflow to infinity, are accepted."""
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"text that is not UTF-8 at byte {error.start}") from error
    if text.count(b"[") + text.count(b"{") > _MAX_DEPTH and _depth(text) > _MAX_DEPTH:
        raise Malformed("JSON that is nested too deeply")
    try:
        return json.loads(decoded, object_pairs_hook=_unique if unique_keys else None)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise Malformed("JSON that is nested too deeply") from error


def _depth(text: bytes) -> int:
    """How deeply lists and objects are nested at most."""
    marks = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    opened = (marks == ord("[")) | (marks == ord("{"))
    closed = (marks == ord("]")) | (marks == ord("}"))
    return int(np.cumsum(opened.view(np.int8) - closed.view(np.int8), dtype=np.int64).max(initial=0))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise Malformed("a JSON object names one key twice")
    return result
