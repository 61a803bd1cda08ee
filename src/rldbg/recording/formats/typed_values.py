"""Arrays of any dtype to and from the plain forms that pt and jsonl files hold: tensors, nested lists, padded rows."""

from functools import cache
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.numpy_rebuild import checked_shape
from rldbg.recording.formats.ragged_lists import ragged_from_lists
from rldbg.recording.formats.tagged_json import ragged_of
from rldbg.recording.lowbits import decode
from rldbg.recording.records import ENCODED_DTYPES, EncodedArray, Ragged

_NUMBER_KINDS = frozenset("biufc")


def dtype_of(value: np.ndarray | EncodedArray | Ragged) -> str:
    flat: Any = value.values if isinstance(value, Ragged) else value
    return flat.dtype if isinstance(flat, EncodedArray) else str(flat.dtype.name)


def is_number_array(value: Any) -> bool:
    """Whether a value is an array of numbers: what a tensor can hold."""
    return isinstance(value, EncodedArray) or (isinstance(value, np.ndarray) and value.dtype.kind in _NUMBER_KINDS)


def padded(ragged: Ragged) -> np.ndarray | EncodedArray:
    """Rows padded with zeros on the right, shape [B, T], in their own dtype."""
    values: Any = ragged.values
    if isinstance(values, EncodedArray):
        return EncodedArray(Ragged(values.bits, ragged.offsets).to_padded(), values.dtype)
    return ragged.to_padded()


def unpadded(matrix: Any, lengths: np.ndarray) -> Ragged:
    """The inverse of padded."""
    bits = matrix.bits if isinstance(matrix, EncodedArray) else matrix
    if not isinstance(bits, np.ndarray) or bits.ndim != 2 or len(bits) != len(lengths):
        raise Malformed("padded rows without a length each")
    if len(lengths) and not 0 <= lengths.min() <= lengths.max() <= bits.shape[1]:
        raise Malformed("a row longer than its padding")
    values = bits[np.arange(bits.shape[1]) < lengths[:, None]]
    return ragged_of(EncodedArray(values, matrix.dtype) if isinstance(matrix, EncodedArray) else values, lengths)


def to_array(value: Any, dtype: str, shape: Any) -> np.ndarray | EncodedArray:
    """A tensor as it is, or nested lists as the array of this dtype and shape that they were written from."""
    dims = checked_shape(shape)
    if isinstance(value, EncodedArray):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.name == dtype:
            return value.reshape(dims)
        value = value.tolist()  # a list of numbers that was read as an array
    base = _base_dtype(dtype)
    if base.kind == "c":
        pairs = np.array(value, dtype=base.type(0).real.dtype).reshape(-1)
        return pairs.view(base).reshape(dims)
    if base.kind in "iu" and 0 not in dims and not _are_integers(value):
        raise Malformed(f"numbers that are not {dtype}")
    flat = np.array(value, dtype=base).reshape(dims)
    return EncodedArray(encode_exact(flat, dtype), dtype) if dtype in ENCODED_DTYPES else flat


def to_ragged(rows: Any, dtype: str) -> Ragged:
    """Lists of numbers as the ragged field of this dtype that they were written from."""
    base = _base_dtype(dtype)
    if not isinstance(rows, list):
        raise Malformed("ragged rows that are not a list")
    ragged = ragged_from_lists(rows, base)
    if dtype in ENCODED_DTYPES:
        return Ragged(EncodedArray(encode_exact(ragged.values, dtype), dtype), ragged.offsets)  # type: ignore[arg-type]
    return ragged


def encode_exact(values: np.ndarray, dtype: str) -> np.ndarray:
    """The bits of float32 values that all came from this dtype; NaNs become its usual NaN."""
    bits: np.ndarray = np.array(values, np.float32, order="C").view(np.uint32)
    if dtype == "bfloat16":
        result = np.asarray(bits >> 16).astype(np.uint16)
    else:
        known, codes = _float8_codes(dtype)
        found = np.minimum(np.searchsorted(known, bits), len(known) - 1)
        result = np.asarray(codes[found])
    back = decode(result, dtype)
    if not np.array_equal(back, values, equal_nan=True):
        raise Malformed(f"numbers that are not {dtype}")
    return result


@cache
def _float8_codes(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Every value of a float8 dtype as float32 bits in order, and its code; all NaNs count as the usual one."""
    codes = np.arange(256, dtype=np.uint8)
    values = decode(codes, dtype)
    bits = np.where(np.isnan(values), np.float32(np.nan), values).astype(np.float32).view(np.uint32)
    known, first = np.unique(bits, return_index=True)
    return known, codes[first]


def _base_dtype(dtype: str) -> np.dtype[Any]:
    base = np.dtype(np.float32 if dtype in ENCODED_DTYPES else dtype)
    if base.kind not in _NUMBER_KINDS:
        raise Malformed(f"{dtype!r:.40} is not a dtype of numbers")
    return base


def _are_integers(value: Any) -> bool:
    """Whether nested lists hold integers only; numpy would silently truncate fractions."""
    while isinstance(value, list) and value and all(isinstance(item, list) for item in value):
        value = [number for row in value for number in row]
    return {int, bool}.issuperset(map(type, value)) if isinstance(value, list) else type(value) is int
