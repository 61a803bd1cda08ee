"""Python data as JSON that loses nothing: what JSON cannot say is an object with one key that starts with `$`.

`$float` nan, inf, -inf; `$int` beyond 2^53; `$bytes` base64; `$complex` [real, imag]; `$array` and `$ragged` numbers
with their dtype; `$map` pairs of a mapping whose keys JSON could not keep apart; `$repr` the text of anything else.
"""

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.numpy_rebuild import checked_shape, refuse_odd_bools
from rldbg.recording.records import ENCODED_DTYPES, EncodedArray, Ragged

# Looked up by exact type before anything else: metadata of thousands of samples passes through here.
_SAME_IN_JSON = frozenset({str, bool, type(None)})
_EXACT_INT = 1 << 53
_PLAIN_KINDS = frozenset("biufc")


def to_json(value: Any) -> Any:
    """The JSON form of a value; the value itself, not a copy, where JSON can say it as it is."""
    exact = type(value)
    if exact in _SAME_IN_JSON:
        return value
    if exact is dict and len(value) != 1 and set(map(type, value)) <= {str}:
        if all(map(_is_same_in_json, value.values())):
            return value
        return {key: item if _is_same_in_json(item) else to_json(item) for key, item in value.items()}
    if _is_same_in_json(value) or (exact is list and all(map(_is_same_in_json, value))):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -_EXACT_INT <= value <= _EXACT_INT else {"$int": str(int(value))}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, list | tuple):
        return value if isinstance(value, list) and _are_plain_rows(value) else [to_json(item) for item in value]
    return _tagged(value)


def _are_plain_rows(rows: Sequence[Any]) -> bool:
    """Whether JSON can say mappings, such as the extra fields of a batch, as they are: looked at all together."""
    if set(map(type, rows)) != {dict} or 1 in set(map(len, rows)):  # one key may be a tag
        return False
    values = list(chain.from_iterable(map(dict.values, rows)))
    if not set(map(type, values)) <= _SAME_IN_JSON | {int, float} or set(map(type, set().union(*rows))) != {str}:
        return False
    whole = [value for value in values if type(value) is int]
    return all(map(math.isfinite, [value for value in values if type(value) is float])) and (
        not whole or -_EXACT_INT <= min(whole) <= max(whole) <= _EXACT_INT
    )


def _is_same_in_json(value: Any) -> bool:
    exact = type(value)
    if exact is float:
        return math.isfinite(value)
    return exact in _SAME_IN_JSON or (exact is int and -_EXACT_INT <= value <= _EXACT_INT)


def from_json(value: Any) -> Any:
    """The inverse of to_json, except that tuples are lists and `$repr` is text."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, content),) = value.items()
        if tag.startswith("$"):
            if tag not in _DECODERS:
                raise Malformed(f"unknown tag {tag!r:.40}", "the file may be of a newer version of rldbg")
            return _DECODERS[tag](content)
    return {key: from_json(item) for key, item in value.items()}


def _mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    is_plain = all(isinstance(key, str) for key in value)
    if is_plain and not (len(value) == 1 and next(iter(value)).startswith("$")):
        return {str(key): to_json(item) for key, item in value.items()}
    return {"$map": [[to_json(key), to_json(item)] for key, item in value.items()]}


def _tagged(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return {"$bytes": b64encode(value).decode()}
    if isinstance(value, complex):
        return {"$complex": [to_json(value.real), to_json(value.imag)]}
    if isinstance(value, Ragged):
        return {"$ragged": [to_json(value.values), to_json(value.lengths)]}
    if isinstance(value, EncodedArray):
        return _array(value.bits, value.dtype)
    if isinstance(value, np.ndarray):
        return _array(value, value.dtype.name) if value.dtype.kind in _PLAIN_KINDS else to_json(value.tolist())
    if isinstance(value, set | frozenset):
        return [to_json(item) for item in sorted(value, key=repr)]
    return {"$repr": repr(value)}


def _array(bits: np.ndarray, dtype: str) -> Any:
    raw = np.ascontiguousarray(bits.astype(bits.dtype.newbyteorder("<"), copy=False)).tobytes()
    return {"$array": {"dtype": dtype, "shape": list(bits.shape), "data": b64encode(raw).decode()}}


def _decode_array(content: Any) -> np.ndarray | EncodedArray:
    if not isinstance(content, dict) or content.keys() != {"dtype", "shape", "data"}:
        raise Malformed("$array without dtype, shape and data")
    name, shape = content["dtype"], checked_shape(content["shape"])
    dtype = np.dtype(ENCODED_DTYPES.get(name, name))
    if dtype.kind not in _PLAIN_KINDS:
        raise Malformed(f"$array of {name!r:.40}")
    raw = b64decode(content["data"], validate=True)
    if len(raw) != math.prod(shape) * dtype.itemsize:
        raise Malformed("$array whose data does not fit its shape")
    bits = np.frombuffer(raw, dtype).reshape(shape) if raw else np.empty(shape, dtype)
    refuse_odd_bools(bits)
    return EncodedArray(bits, name) if name in ENCODED_DTYPES else bits


def _decode_ragged(content: Any) -> Ragged:
    values, lengths = (from_json(item) for item in content)
    if not isinstance(lengths, np.ndarray) or lengths.dtype != np.int64 or lengths.ndim != 1:
        raise Malformed("$ragged without lengths")
    return ragged_of(values, lengths)


def ragged_of(values: Any, lengths: np.ndarray) -> Ragged:
    """Values cut into rows of these lengths; refuses lengths that do not add up."""
    if len(values.shape) != 1 or (len(lengths) and not 0 <= lengths.min() <= lengths.max() <= len(values)):
        raise Malformed("a ragged field has a row of impossible length")
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if int(offsets[-1]) != len(values):
        raise Malformed(f"a ragged field has {len(values)} values and rows of {int(offsets[-1])}")
    return Ragged(values, offsets)


def _decode_float(content: Any) -> float:
    if content not in ("nan", "inf", "-inf"):
        raise Malformed(f"$float of {content!r:.40}")
    return float(content)


def _decode_complex(content: Any) -> complex:
    real, imag = (from_json(item) for item in content)
    return complex(real, imag)


def _decode_map(content: Any) -> dict[Any, Any]:
    return {from_json(key): from_json(item) for key, item in content}


def _decode_text(content: Any) -> str:
    if not isinstance(content, str):
        raise Malformed(f"{content!r:.40} where text is expected")
    return content


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "$array": _decode_array,
    "$bytes": lambda content: b64decode(content, validate=True),
    "$complex": _decode_complex,
    "$float": _decode_float,
    "$int": lambda content: int(_decode_text(content)),
    "$map": _decode_map,
    "$ragged": _decode_ragged,
    "$repr": _decode_text,
}
