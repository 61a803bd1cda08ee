"""What pt and jsonl files say about their arrays under `_rldbg`: the dtype and shape each had, or its rows' lengths.

A tensor keeps its dtype by itself; a list of numbers does not, and padding hides how long rows were. With the
sidecar both come back exactly. Without it (files of others) the narrowest dtype that is exact is taken.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.number_opcodes import AsList, as_lists
from rldbg.recording.formats.ragged_lists import ragged_from_lists
from rldbg.recording.formats.typed_values import (
    dtype_of,
    is_number_array,
    padded,
    to_array,
    to_ragged,
    unpadded,
)
from rldbg.recording.records import EncodedArray, Ragged


class Sidecar:
    """Collects the description of fields while they are written."""

    def __init__(self) -> None:
        self.dtypes: dict[str, str] = {}
        self.shapes: dict[str, list[int]] = {}
        self.lengths: dict[str, AsList] = {}

    def describe(self, name: str, value: Any) -> None:
        if isinstance(value, Ragged):
            self.dtypes[name] = dtype_of(value)
            self.lengths[name] = AsList(value.lengths.astype(np.int64))
        elif is_number_array(value):
            self.dtypes[name] = dtype_of(value)
            self.shapes[name] = list(value.shape)

    def whole(self, name: str, value: Any) -> Any:
        """A field as one entry of a dictionary: a tensor, or plain data."""
        self.describe(name, value)
        if isinstance(value, Ragged):
            return padded(value)
        return value if is_number_array(value) else plain(value)

    def rows(self, name: str, value: Any) -> list[Any]:
        """A field as one entry per sample: a list of numbers, a number, or plain data."""
        self.describe(name, value)
        if isinstance(value, Ragged):
            return list(as_lists(value))
        if is_number_array(value):
            numbers = value.decode() if isinstance(value, EncodedArray) else value
            return [AsList(row) for row in numbers] if numbers.ndim > 1 else list(numbers.tolist())
        return [plain(item) for item in value]

    def to_dict(self) -> dict[str, Any]:
        return {"dtypes": self.dtypes, "shapes": self.shapes, "lengths": self.lengths}


class Described:
    """Brings fields back to what they were when they were described; `data` is the `_rldbg` of a file, or empty."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._dtypes = _mapping(data, "dtypes")
        self._shapes = _mapping(data, "shapes")
        self._lengths = _mapping(data, "lengths")

    def knows(self, name: str) -> bool:
        return name in self._shapes or name in self._lengths

    def whole(self, name: str, value: Any) -> Any:
        dtype = self._dtype(name)
        if name in self._shapes:
            return to_array(value, dtype, self._shapes[name])
        lengths = self._row_lengths(name)
        return unpadded(to_array(value, dtype, [len(lengths), int(lengths.max(initial=0))]), lengths)

    def rows(self, name: str, values: list[Any]) -> Any:
        dtype = self._dtype(name)
        if name in self._shapes:
            return to_array(values, dtype, self._shapes[name])
        ragged = to_ragged(values, dtype)
        if not np.array_equal(ragged.lengths, self._row_lengths(name)):
            raise Malformed(f"rows of {name} are not as long as they were when written")
        return ragged

    def _dtype(self, name: str) -> str:
        dtype = self._dtypes.get(name)
        if not isinstance(dtype, str):
            raise Malformed(f"{name} has no dtype")
        return dtype

    def _row_lengths(self, name: str) -> np.ndarray:
        lengths = np.asarray(self._lengths[name], dtype=np.int64)
        if lengths.ndim != 1:
            raise Malformed(f"{name} has no list of lengths")
        return lengths


def plain(value: Any) -> Any:
    """Data as the seeds write it: numbers, text, lists and dictionaries; a tensor is a number or a list."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {plain_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_number_array(value):
        numbers = value.decode() if isinstance(value, EncodedArray) else value
        return numbers.tolist() if numbers.ndim == 0 or numbers.dtype.kind == "c" else AsList(numbers)
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()] if value.ndim else plain(value.item())
    return AsList(value) if isinstance(value, Ragged) else str(value)


def plain_key(key: Any) -> Any:
    return key if isinstance(key, str | int | float | bool) or key is None else str(key)


def undescribed_rows(values: list[Any]) -> Any:
    """Rows of a file without a sidecar: ragged numbers, one number a sample, or the list as it is."""
    if values and all(isinstance(value, list | np.ndarray) for value in values):
        kinds = {kind for value in values for kind in _kinds(value)}
        if not kinds <= {"i", "f", "b"}:
            return values
        ragged = ragged_from_lists(values, np.float64 if "f" in kinds or not kinds else np.int64)
        return Ragged(_narrowed(ragged.values), ragged.offsets)
    kinds = _kinds(values) if values else set()
    return np.array(values) if len(kinds) == 1 and kinds <= {"i", "f", "b"} else values


def undescribed_tensor(value: Any, dtype: str | None = None) -> Any:
    """Nested lists of numbers as an array of the narrowest exact dtype, or of the dtype the file names."""
    if not isinstance(value, list):
        return value
    array = np.array(value, dtype=np.float64) if not value or None in value else np.array(value)
    if array.dtype.kind not in "biuf":
        return value
    if dtype is not None:
        return to_array(value, dtype, array.shape)
    return _narrowed(array)


def _narrowed(values: np.ndarray) -> np.ndarray:
    """float64 as float32 where nothing is lost: numbers that went through a list came from float32 tensors mostly."""
    if values.dtype != np.float64 or not len(values):
        return values
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    return narrow if np.array_equal(narrow.astype(np.float64), values, equal_nan=True) else values


def _kinds(values: Any) -> set[str]:
    """The kinds of number in a row, by numpy's letters; another letter for anything else."""
    if isinstance(values, np.ndarray):
        return {values.dtype.kind} if values.ndim == 1 and len(values) else set()
    names = {int: "i", float: "f", bool: "b"}
    return {names.get(kind, "O") for kind in set(map(type, values))}


def _mapping(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name, {})
    if not isinstance(value, dict):
        raise Malformed(f"_rldbg.{name} is not a mapping")
    return value
