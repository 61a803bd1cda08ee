"""Data as NexRL writes it (numbers, text, lists, dictionaries), and `typed`: what that form does not tell.

`typed` names each such value by its path (the field, then rows and keys, joined by `/` as in a JSON pointer) and says
{"dtype", "shape"} of an array, {"dtype", "lengths"} of ragged rows, or {"value"}: the whole value as tagged JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.number_opcodes import AsList
from rldbg.recording.formats.tagged_json import from_json, to_json
from rldbg.recording.formats.typed_values import dtype_of, is_number_array, to_array, to_ragged
from rldbg.recording.records import EncodedArray, Ragged

Path = tuple[str, ...]
Typed = dict[str, Any]


def joined(path: Path) -> str:
    """Slashes inside a key are written ~1, and tildes ~0, as in JSON pointers."""
    return "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)


def split(place: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in place.split("/")]


def plain(value: Any, path: Path, typed: Typed) -> Any:
    """The value as NexRL writes it; what it takes to get the value back is added to `typed`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        item = value.item()
        return str(item) if isinstance(item, np.generic) else plain(item, path, typed)
    if isinstance(value, Mapping):
        return _plain_mapping(value, path, typed)
    if isinstance(value, list | tuple):
        return [plain(item, (*path, str(place)), typed) for place, item in enumerate(value)]
    if isinstance(value, Ragged):
        typed[joined(path)] = {"dtype": dtype_of(value), "lengths": AsList(value.lengths.astype(np.int64))}
        return AsList(value)
    if is_number_array(value):
        typed[joined(path)] = {"dtype": dtype_of(value), "shape": list(value.shape)}
        return _numbers(value)
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), path, typed)
    if isinstance(value, bytes | bytearray | complex | set | frozenset):
        typed[joined(path)] = {"value": to_json(value)}
    return bytes(value) if isinstance(value, bytes | bytearray) else str(value)


def _plain_mapping(value: Mapping[Any, Any], path: Path, typed: Typed) -> dict[Any, Any]:
    """Keys that JSON would turn into text make the whole mapping a typed value."""
    if all(isinstance(key, str) for key in value):
        return {key: plain(item, (*path, key), typed) for key, item in value.items()}
    typed[joined(path)] = {"value": to_json(value)}
    return {_plain_key(key): plain(item, (), {}) for key, item in value.items()}


def _plain_key(key: Any) -> Any:
    return key if isinstance(key, str | int | float | bool) or key is None else str(key)


def _numbers(value: np.ndarray | EncodedArray) -> Any:
    """A number, or lists of numbers; complex numbers are pairs along a last axis."""
    numbers = value.decode() if isinstance(value, EncodedArray) else value
    if numbers.dtype.kind == "c":
        numbers = np.ascontiguousarray(numbers).reshape(*value.shape, 1).view(numbers.real.dtype)
    return AsList(numbers) if numbers.ndim else numbers.tolist()


def with_lists(value: Any) -> Any:
    """Plain data as it was written: with lists, where readers may give long lists of numbers as arrays."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: with_lists(item) for key, item in value.items()}
    return [with_lists(item) for item in value] if isinstance(value, list) else value


def restored(value: Any, parts: Sequence[str], about: Any) -> Any:
    """The value with what lies at this path below it brought back, as `about` says."""
    if not isinstance(about, dict):
        raise Malformed(f"a typed value is not described: {about!r:.60}")
    if not parts:
        return _typed_value(value, about)
    inner: Any = value
    for part in parts[:-1]:
        inner = inner[_key(inner, part)]
    last = _key(inner, parts[-1])
    inner[last] = _typed_value(inner[last], about)
    return value


def _key(container: Any, part: str) -> Any:
    if isinstance(container, list):
        return int(part)
    if not isinstance(container, dict):
        raise Malformed(f"a typed value lies below {container!r:.40}")
    return part


def _typed_value(value: Any, about: Mapping[str, Any]) -> Any:
    if "value" in about:
        return from_json(about["value"])
    dtype = about.get("dtype")
    if not isinstance(dtype, str):
        raise Malformed(f"a typed value has no dtype: {about!r:.60}")
    if "shape" in about:
        return to_array(value, dtype, about["shape"])
    rows = to_ragged(value, dtype)
    if not np.array_equal(rows.lengths, np.asarray(about.get("lengths"))):
        raise Malformed("rows of a typed value are not as long as they were when written")
    return rows
