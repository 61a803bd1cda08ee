"""What a file of ours says about itself, checked against the tensors it holds before anything is cut out of them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rldbg.recording.formats.identity import (
    are_coordinates,
    are_samples,
    is_int,
    is_size,
    is_text,
    is_version,
    list_of,
    take,
)
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
    version = take(metadata, "schema_version", is_int)
    if version > SCHEMA_VERSION:
        raise Malformed(f"written by a newer rldbg (format {version})", "upgrade rldbg to read it")
    for name in ("step", "epoch", "mini_batch", "rank"):
        take(metadata, name, is_int)
    for name in ("kind", "role"):
        take(metadata, name, is_text)
    take(metadata, "policy_version", is_version)
    take(metadata, "coordinates", are_coordinates)
    count = len(take(metadata, "micros", list_of(is_int)))
    rows = take(metadata, "rows", list_of(is_size))
    samples = take(metadata, "samples", are_samples)
    hashes = take(metadata, "prompt_hashes", list_of(is_text))
    extra = take(metadata, "extra", list_of(lambda _: True))
    if len(rows) != count or len(extra) != count or not {len(samples), len(hashes)} <= {0, sum(rows)}:
        raise Malformed("it does not describe as many rows and samples as it has micro-batches")
    for name, field in take(metadata, "fields", lambda value: isinstance(value, dict)).items():
        if not isinstance(field, dict):
            raise Malformed(f"its description of field {name!r:.60} is not valid")
        _check_field(name, field, count, tensors)
    return metadata


def _check_field(
    name: str, field: dict[str, Any], count: int, tensors: Mapping[str, np.ndarray | EncodedArray]
) -> None:
    layout = field.get("layout")
    if layout == "data":
        take(field, "values", lambda value: isinstance(value, list) and len(value) == count)
        return
    values = tensors.get(name)
    if values is None or len(values.shape) != 1:
        raise Malformed(f"field {name!r:.60} has no flat tensor")
    width = 1
    if "dtype" in field:
        take(field, "dtype", lambda value: value == COMPLEX128 and values.dtype == np.float64)
        width = 2
    if layout == "dense":
        shapes = take(field, "shapes", lambda value: isinstance(value, list) and len(value) == count)
        total = sum(math.prod(checked_shape(shape)) for shape in shapes if shape is not None)
        if total * width != len(values):
            raise Malformed(f"field {name!r:.60} has {len(values)} values, its shapes need {total * width}")
    elif layout == "ragged":
        rows = take(field, "rows", list_of(lambda value: value is None or is_size(value)))
        lengths = tensors.get(name + LENGTHS)
        if not isinstance(lengths, np.ndarray) or lengths.dtype != np.int64 or lengths.ndim != 1:
            raise Malformed(f"field {name!r:.60} has no lengths")
        if len(rows) != count or len(lengths) != sum(row or 0 for row in rows):
            raise Malformed(f"field {name!r:.60} has {len(lengths)} lengths for other rows")
        whole = values.view(np.complex128) if width == 2 and isinstance(values, np.ndarray) else values
        ragged_of(whole, lengths)
    else:
        raise Malformed(f"field {name!r:.60} has the unknown layout {layout!r:.40}")
