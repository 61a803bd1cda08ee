"""What pt and jsonl files say about their arrays under `_rldbg`: the dtype and shape each had, or its rows' lengths.

A tensor keeps its dtype by itself; a list of numbers does not, and padding hides how long rows were. With the
sidecar both come back exactly. Without it (files of others) the narrowest dtype that is exact is taken.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.number_opcodes import AsList, as_lists
from rldbg.recording.formats.plain_data import Typed, plain, restored, split, with_lists
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
        self.typed: Typed = {}

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
        return value if is_number_array(value) else plain(value, (name,), self.typed)

    def rows(self, name: str, value: Any) -> list[Any]:
        """A field as one entry per sample: a list of numbers, a number, or plain data."""
        self.describe(name, value)
        if isinstance(value, Ragged):
            return list(as_lists(value))
        if is_number_array(value):
            numbers = value.decode() if isinstance(value, EncodedArray) else value
            return [AsList(row) for row in numbers] if numbers.ndim > 1 else list(numbers.tolist())
        return [plain(item, (name, str(row)), self.typed) for row, item in enumerate(value)]

    def to_dict(self) -> dict[str, Any]:
        arrays = {"dtypes": self.dtypes, "shapes": self.shapes, "lengths": self.lengths}
        return arrays | ({"typed": self.typed} if self.typed else {})


class FieldRestorer:
    """Brings fields back to what they were when they were described; `data` is the `_rldbg` of a file, or empty."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._is_own = bool(data)
        self._dtypes = _mapping(data, "dtypes")
        self._shapes = _mapping(data, "shapes")
        self._lengths = _mapping(data, "lengths")
        self._typed: dict[str, list[tuple[list[str], Any]]] = {}
        for place, about in _mapping(data, "typed").items():
            name, *parts = split(place)
            self._typed.setdefault(name, []).append((parts, about))

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

    def data(self, name: str, value: Any) -> Any:
        """Plain data with the types that it had; as it is where nothing is described."""
        if not self._is_own:
            return value
        value = with_lists(value)
        for parts, about in self._typed.get(name, ()):
            value = restored(value, parts, about)
        return value

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


def undescribed_rows(values: list[Any]) -> Any:
    """Rows of a file without a sidecar: ragged numbers, one number per sample, or the list as it is."""
    values = [value.item() if np.ndim(value) == 0 and hasattr(value, "item") else value for value in values]
    if values and all(isinstance(value, list | np.ndarray) for value in values):
        kinds = {kind for value in values for kind in _kinds(value)}
        if not kinds <= {"i", "f", "b"}:
            return values
        ragged = ragged_from_lists(values, np.float64 if "f" in kinds or not kinds else np.int64)
        return Ragged(_narrowed(ragged.values), ragged.offsets)
    kinds = _kinds([value for value in values if value is not None]) if values else set()
    if kinds and kinds <= {"i", "f"} and (len(kinds) == 2 or None in values):
        return np.array([np.nan if value is None else value for value in values], np.float64)
    return np.array(values) if len(kinds) == 1 and kinds <= {"i", "f", "b"} and None not in values else values


def undescribed_tensor(value: Any, dtype: str | None = None) -> Any:
    """Nested lists of numbers as an array of the narrowest exact dtype, or of the dtype the file names."""
    if not isinstance(value, list):
        return value
    try:
        array = np.array(value, dtype=np.float64) if not value or None in value else np.array(value)
    except ValueError:  # rows of different lengths
        return undescribed_rows(value)
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
