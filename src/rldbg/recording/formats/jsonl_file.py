"""One dictionary as one line of JSON, as NexRL's jsonl files are: tensors are nested lists.

JSON has neither NaN nor infinity. Inf is written 1e999, which every parser reads as infinity; NaN is null, and
`_rldbg.nan` lists where: a path of keys and indices joined by `/`, and the flat positions in the value there.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rldbg.recording.formats.bounded_json import parse_json
from rldbg.recording.formats.malformed import Malformed, reading
from rldbg.recording.formats.mapped_file import file_bytes
from rldbg.recording.formats.nexrl_dict import OWN_KEY
from rldbg.recording.formats.number_opcodes import AsList
from rldbg.recording.formats.plain_data import joined, split
from rldbg.recording.records import EncodedArray, Ragged


def dump_jsonl(value: Mapping[str, Any], target: Path | str | BinaryIO) -> None:
    """Write the file, to a path or to an open binary file."""
    data = encode_jsonl(value)
    if isinstance(target, Path | str):
        Path(target).write_bytes(data)
    else:
        target.write(data)


def encode_jsonl(value: Mapping[str, Any]) -> bytes:
    """The line, with its line feed."""
    nan: dict[str, list[int]] = {}
    parts = [
        f"{json.dumps(str(key))}: {_text(item, (str(key),), nan)}" for key, item in value.items() if key != OWN_KEY
    ]
    own = value.get(OWN_KEY)
    if own is not None or nan:
        text = _text(own or {}, (OWN_KEY,), nan)
        if nan:
            text = text[:-1] + (", " if len(text) > 2 else "") + f'"nan": {json.dumps(nan)}}}'
        parts.append(f"{json.dumps(OWN_KEY)}: {text}")
    return ("{" + ", ".join(parts) + "}\n").encode("utf-8")


def load_jsonl(path: Path | str) -> dict[str, Any]:
    """The dictionary in a file, with lists where tensors were and NaN where it was."""
    with reading(path):
        value = parse_json(bytes(file_bytes(path)))
        if not isinstance(value, dict):
            raise Malformed("not one JSON object")
        own = value.get(OWN_KEY)
        if isinstance(own, dict) and "nan" in own:
            positions = own.pop("nan")
            if not isinstance(positions, dict):
                raise Malformed(f"{OWN_KEY}.nan is not a mapping")
            for place, flat in positions.items():
                _restore(value, place, flat)
            if not own:
                del value[OWN_KEY]
        return value


def _text(value: Any, path: tuple[str, ...], nan: dict[str, list[int]]) -> str:
    if isinstance(value, AsList):
        value = value.values
    if isinstance(value, Ragged):
        flat = _flat_values(value)
        return _array_text(list(Ragged(flat, value.offsets)), flat, path, nan)
    if isinstance(value, EncodedArray):
        value = value.decode()
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "c":
            value = np.ascontiguousarray(value).reshape(*value.shape, 1).view(value.real.dtype)
        return _array_text(value, value, path, nan)
    if isinstance(value, Mapping):
        items = (f"{json.dumps(_key(key))}: {_text(item, (*path, _key(key)), nan)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list | tuple):
        try:  # plain data without NaN or Inf, which is nearly all of it, goes through the C encoder
            return json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return "[" + ", ".join(_text(item, (*path, str(i)), nan) for i, item in enumerate(value)) + "]"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            nan[joined(path)] = [0]
            return "null"
        return "1e999" if value > 0 else "-1e999"
    return json.dumps(value.decode("latin1") if isinstance(value, bytes) else value)


def _array_text(nested: Any, values: np.ndarray, path: tuple[str, ...], nan: dict[str, list[int]]) -> str:
    """Nested lists of numbers only, so that the words NaN and Infinity can stand for nothing else."""
    text = json.dumps(nested.tolist() if isinstance(nested, np.ndarray) else [row.tolist() for row in nested])
    if values.dtype.kind != "f" or bool(np.isfinite(values).all()):
        return text
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        nan[joined(path)] = missing.tolist()
    return text.replace("NaN", "null").replace("Infinity", "1e999")


def _flat_values(ragged: Ragged) -> np.ndarray:
    values: Any = ragged.values
    decoded: np.ndarray = values.decode() if isinstance(values, EncodedArray) else values
    return decoded


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(key)


def _restore(root: Any, place: str, positions: Any) -> None:
    """Put NaN back at these flat positions of the value at this place."""
    if not isinstance(positions, list) or not all(type(item) is int and item >= 0 for item in positions):
        raise Malformed(f"positions of NaN in {place!r:.60} are not integers")
    *parents, last = split(place)
    for part in parents:
        root = root[int(part)] if isinstance(root, list) else root[part]
    index: Any = int(last) if isinstance(root, list) else last
    if not isinstance(root[index], list):
        _expect_null(root[index], place)
        root[index] = math.nan
        return
    wanted = iter(sorted(set(positions)))
    position = next(wanted, None)
    start = 0
    for leaves in _leaf_lists(root[index]):
        while position is not None and position < start + len(leaves):
            _expect_null(leaves[position - start], place)
            leaves[position - start] = math.nan
            position = next(wanted, None)
        start += len(leaves)
    if position is not None:
        raise Malformed(f"NaN in {place!r:.60} at position {position}, beyond its end")


def _leaf_lists(value: list[Any]) -> Iterator[list[Any]]:
    """The innermost lists, in order."""
    if value and isinstance(value[0], list):
        for item in value:
            if not isinstance(item, list):
                raise Malformed("lists and numbers mixed")
            yield from _leaf_lists(item)
    else:
        yield value


def _expect_null(value: Any, place: str) -> None:
    if value is not None:
        raise Malformed(f"NaN noted in {place!r:.60} where there is {value!r:.40}")
