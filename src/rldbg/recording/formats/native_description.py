"""What a file of ours says about itself, checked against the tensors it holds before anything is cut out of them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.numpy_rebuild import checked_shape
from rldbg.recording.formats.tagged_json import ragged_of
from rldbg.recording.records import SCHEMA_VERSION, EncodedArray

LENGTHS = ".lengths"
COMPLEX128 = "complex128"  # safetensors has no such dtype: stored as pairs of float64


def checked_description(metadata: Any, tensors: Mapping[str, np.ndarray | EncodedArray]) -> dict[str, Any]:
    """The description itself, once everything in it has the type and the length the specification asks for."""
    if not isinstance(metadata, dict):
        raise Malformed("its description is not a JSON object")
    version = _take(metadata, "schema_version", _is_int)
    if version > SCHEMA_VERSION:
        raise Malformed(f"written by a newer rldbg (format {version})", "upgrade rldbg to read it")
    for name in ("step", "epoch", "mini_batch", "rank"):
        _take(metadata, name, _is_int)
    for name in ("kind", "role"):
        _take(metadata, name, _is_text)
    _take(metadata, "policy_version", lambda value: value is None or _is_int(value))
    _take(metadata, "coordinates", lambda value: isinstance(value, dict) and all(map(_is_int, value.values())))
    count = len(_take(metadata, "micros", _list_of(_is_int)))
    rows = _take(metadata, "rows", _list_of(_is_size))
    samples = _take(metadata, "samples", _are_samples)
    hashes = _take(metadata, "prompt_hashes", _list_of(_is_text))
    extra = _take(metadata, "extra", _list_of(lambda _: True))
    if len(rows) != count or len(extra) != count or not {len(samples), len(hashes)} <= {0, sum(rows)}:
        raise Malformed("it does not describe as many rows and samples as it has micro-batches")
    for name, field in _take(metadata, "fields", lambda value: isinstance(value, dict)).items():
        if not isinstance(field, dict):
            raise Malformed(f"its description of field {name!r:.60} is not valid")
        _check_field(name, field, count, tensors)
    return metadata


def _check_field(
    name: str, field: dict[str, Any], count: int, tensors: Mapping[str, np.ndarray | EncodedArray]
) -> None:
    layout = field.get("layout")
    if layout == "data":
        _take(field, "values", lambda value: isinstance(value, list) and len(value) == count)
        return
    values = tensors.get(name)
    if values is None or len(values.shape) != 1:
        raise Malformed(f"field {name!r:.60} has no flat tensor")
    width = 1
    if "dtype" in field:
        _take(field, "dtype", lambda value: value == COMPLEX128 and values.dtype == np.float64)
        width = 2
    if layout == "dense":
        shapes = _take(field, "shapes", lambda value: isinstance(value, list) and len(value) == count)
        total = sum(math.prod(checked_shape(shape)) for shape in shapes if shape is not None)
        if total * width != len(values):
            raise Malformed(f"field {name!r:.60} has {len(values)} values, its shapes need {total * width}")
    elif layout == "ragged":
        rows = _take(field, "rows", _list_of(lambda value: value is None or _is_size(value)))
        lengths = tensors.get(name + LENGTHS)
        if not isinstance(lengths, np.ndarray) or lengths.dtype != np.int64 or lengths.ndim != 1:
            raise Malformed(f"field {name!r:.60} has no lengths")
        if len(rows) != count or len(lengths) != sum(row or 0 for row in rows):
            raise Malformed(f"field {name!r:.60} has {len(lengths)} lengths for other rows")
        whole = values.view(np.complex128) if width == 2 and isinstance(values, np.ndarray) else values
        ragged_of(whole, lengths)
    else:
        raise Malformed(f"field {name!r:.60} has the unknown layout {layout!r:.40}")


def _take(metadata: dict[str, Any], name: str, is_valid: Callable[[Any], bool]) -> Any:
    if name not in metadata or not is_valid(metadata[name]):
        raise Malformed(f"its description of {name} is not valid: {metadata.get(name)!r:.60}")
    return metadata[name]


def _list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _is_int(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_samples(value: Any) -> bool:
    """One loop without calls: a file may name a hundred thousand of them."""
    return isinstance(value, list) and all(
        type(item) is list
        and len(item) == 2
        and type(item[0]) is str
        and type(item[1]) is int
        and -(1 << 63) <= item[1] < 1 << 63
        for item in value
    )
