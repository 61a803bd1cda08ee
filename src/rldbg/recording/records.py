"""What a recording is made of: a record is what one process knew about one kind at one step and micro-batch.

Shapes are named by letters: B rows (samples), T tokens of a sequence, R response tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rldbg.core import SampleId, prompt_hash

SCHEMA_VERSION = 1
_ROWS_AT_ONCE = 64
# More than a policy has: where the numbers of another model's parameters begin, such as a critic's beside it.
OTHER_MODEL = 1_000_000


class RecordKey(NamedTuple):
    """The key of a record. The order of the fields is the sort order everywhere."""

    kind: str
    step: int
    rank: int = 0
    micro: int = 0
    epoch: int = 0
    mini_batch: int = 0

    def __str__(self) -> str:
        text = f"{self.kind} step {self.step} rank {self.rank} micro {self.micro}"
        if self.epoch or self.mini_batch:
            text += f" epoch {self.epoch} mini-batch {self.mini_batch}"
        return text


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different lengths as flat values and offsets: row i is values[offsets[i]:offsets[i + 1]]."""

    values: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        if self.offsets.ndim != 1 or len(self.offsets) == 0 or int(self.offsets[-1]) != len(self.values):
            raise ValueError("offsets do not fit the values")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes + self.offsets.nbytes)

    @classmethod
    def from_rows(cls, rows: Sequence[Any], dtype: np.dtype[Any] | type | None = None) -> "Ragged":
        are_arrays = set(map(type, rows)) == {np.ndarray}
        arrays = rows if are_arrays else [np.asarray(row, dtype) for row in rows]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum(list(map(len, arrays)), out=offsets[1:])
        if len(arrays):
            return cls(np.concatenate(arrays, dtype=dtype, casting="unsafe"), offsets)
        return cls(np.empty(0, dtype=dtype or np.float32), offsets)

    def to_padded(self, fill: float = 0) -> np.ndarray:
        """Rows padded on the right to the longest, shape [B, T]."""
        lengths = self.lengths
        padded = np.full((len(self), int(lengths.max(initial=0))), fill, dtype=self.values.dtype)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = self.values
        return padded


def prompt_lengths(loss_mask: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """How many tokens of each row come before the first one that is trained on (all of them when none is)."""
    starts, ends = offsets[:-1], offsets[1:]
    trained = np.asarray(loss_mask) != 0
    # Few places where training begins instead of all that are trained: a row's own start, or behind one that is not.
    begins = trained.copy()
    begins[1:] &= ~trained[:-1]
    held = starts[starts < len(trained)]
    begins[held] = trained[held]
    places = np.append(np.flatnonzero(begins), len(trained))
    lengths: np.ndarray = np.minimum(places[np.searchsorted(places, starts)], ends) - starts
    return lengths


def hashes_of_prompts(tokens: Ragged, loss_mask: Ragged) -> tuple[str, ...]:
    """A hash of each row's tokens before the first one that is trained on (the whole row when none is)."""
    ids: Any = tokens.values
    if not isinstance(ids, np.ndarray):  # a dtype that numpy does not have holds no token ids
        return ()
    starts, ends = tokens.offsets[:-1], tokens.offsets[1:]
    prompt_ends = starts + prompt_lengths(loss_mask.values, tokens.offsets)
    hashes: list[str] = []
    known: dict[bytes, str] = {}  # the samples of a group share their prompt
    for first in range(0, len(starts), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        offset = int(starts[first])
        with np.errstate(invalid="ignore"):  # a damaged file may hold what is not a token id
            wide = ids[offset : int(ends[part][-1])].astype("<i8", copy=False).tobytes()
        begins, stops = (8 * (places[part] - offset) for places in (starts, prompt_ends))
        for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True):
            prompt = wide[begin:stop]
            if prompt not in known:
                known[prompt] = prompt_hash(prompt)
            hashes.append(known[prompt])
    return tuple(hashes)


# dtypes that numpy does not have: stored as raw integers of the same width, with the name of the real type beside them.
ENCODED_DTYPES: Mapping[str, type] = {
    "bfloat16": np.uint16,
    "float8_e4m3fn": np.uint8,
    "float8_e5m2": np.uint8,
    "float8_e4m3fnuz": np.uint8,
    "float8_e5m2fnuz": np.uint8,
    "float8_e8m0fnu": np.uint8,
}


@dataclass(frozen=True, slots=True)
class EncodedArray:
    """An array of a dtype that numpy does not have (bfloat16, float8): the raw bits and the real type's name."""

    bits: np.ndarray
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    @property
    def nbytes(self) -> int:
        return int(self.bits.nbytes)

    def __len__(self) -> int:
        return len(self.bits)

    def __getitem__(self, item: Any) -> "EncodedArray":
        return EncodedArray(self.bits[item], self.dtype)

    def decode(self) -> np.ndarray:
        """The exact values as float32, which holds every value of each of these types."""
        from rldbg.recording.lowbits import decode

        return decode(self.bits, self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self.decode()
        return values if dtype is None else values.astype(dtype)


# A field of a record: arrays, ragged rows, numbers and text, or JSON-like data (metrics, messages).
Value = Any


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `fields` holds the kind's data under the schema's names; rows follow `samples`.

    `extra` keeps what a foreign layout knew beyond our schema: nothing is silently dropped.
    """

    key: RecordKey
    fields: Mapping[str, Value]
    samples: tuple[SampleId, ...] = ()
    prompt_hashes: tuple[str, ...] = ()
    role: str = ""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    policy_version: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def array(self, name: str) -> np.ndarray:
        """A field as a numpy array, decoded where numpy lacks its dtype; ragged fields as flat values."""
        value = self.fields[name]
        if isinstance(value, Ragged):
            value = value.values
        return value.decode() if isinstance(value, EncodedArray) else np.asarray(value)

    def rows(self, name: str) -> Iterator[np.ndarray]:
        """A per-sample field row by row, whether it is ragged or padded."""
        value = self.fields[name]
        return iter(value if isinstance(value, Ragged) else self.array(name))

    def dtype(self, name: str) -> str:
        """The dtype the writer had, by its usual name; `object` for data that is not an array."""
        value = self.fields[name]
        if isinstance(value, Ragged):
            value = value.values
        if isinstance(value, EncodedArray):
            return value.dtype
        try:
            return str(np.asarray(value).dtype)
        except ValueError:  # rows of different lengths
            return "object"
