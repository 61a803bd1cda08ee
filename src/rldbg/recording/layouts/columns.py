"""Per-sample values of foreign dumps, as the columns of a record: ragged rows, numbers, ids.

Values come as lists (None where JSON had no number), numpy arrays, or EncodedArray; dtypes stay what they were.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.records import EncodedArray, Ragged, hashes_of_prompts

_REWARD_KEYS = ("score", "reward", "total_reward", "acc")
_NUMBER_TEXT = re.compile(r"[-+]?(\d+\.?\d*([eE][-+]?\d+)?|\.\d+|nan|inf)")
_NUMBERS = int | float | np.number | np.bool_


def ragged(rows: Sequence[Any]) -> Ragged:
    """One row per sample; a missing row (None) is empty, a missing value in a row is NaN."""
    if rows and all(isinstance(row, EncodedArray) for row in rows):
        return _ragged_encoded(rows)
    arrays = [_row(row) for row in rows]
    filled = [array for array in arrays if len(array)]
    dtype = np.result_type(*{array.dtype for array in filled}) if filled else np.dtype(np.int64)
    return Ragged.from_rows(arrays, dtype)


def _ragged_encoded(rows: Sequence[Any]) -> Ragged:
    names = {row.dtype for row in rows}
    if len(names) > 1:
        return Ragged.from_rows([row.decode().reshape(-1) for row in rows])
    bits = Ragged.from_rows([row.bits.reshape(-1) for row in rows])
    return Ragged(EncodedArray(bits.values, names.pop()), bits.offsets)  # type: ignore[arg-type]


def _row(row: Any) -> np.ndarray:
    if row is None:
        return np.empty(0, np.float64)
    if isinstance(row, EncodedArray):
        row = row.decode()
    if isinstance(row, np.ndarray) and row.dtype != object:
        return row.reshape(-1)
    values = list(row) if isinstance(row, list | tuple | np.ndarray) else [row]
    if None in values:
        return np.array([np.nan if value is None else value for value in values], np.float64)
    array = np.array(values) if values else np.empty(0, np.float64)
    if array.dtype.kind not in "biuf":
        raise Malformed(f"a row of {array.dtype} where numbers are expected")
    return array.reshape(-1)


def after_prompt(response: Ragged, lengths: np.ndarray, fill: float = 0) -> Ragged:
    """Rows that cover the response, set at the end of rows as long as the whole sequence."""
    missing = lengths - response.lengths
    if len(lengths) != len(response) or (missing < 0).any():
        raise Malformed("a response is longer than its sequence")
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    source: Any = response.values
    bits = source.bits if isinstance(source, EncodedArray) else source
    whole = np.full(int(offsets[-1]), fill, bits.dtype)
    # Value j of the response lies at j plus all the prompt tokens up to and including its own row's.
    shift = np.repeat(np.cumsum(missing), response.lengths)
    whole[np.arange(len(bits)) + shift] = bits
    values = EncodedArray(whole, source.dtype) if isinstance(source, EncodedArray) else whole
    return Ragged(values, offsets)  # type: ignore[arg-type]


def unpadded(matrix: Any, keep: np.ndarray) -> Ragged:
    """Rows of a padded [B, T] matrix, with only the positions to keep."""
    bits = matrix.bits if isinstance(matrix, EncodedArray) else matrix
    if bits.shape != keep.shape:
        raise Malformed(f"shape {bits.shape} where the mask has {keep.shape}")
    offsets = np.zeros(len(keep) + 1, np.int64)
    np.cumsum(keep.sum(axis=1), out=offsets[1:])
    values = bits[keep]
    return Ragged(EncodedArray(values, matrix.dtype) if isinstance(matrix, EncodedArray) else values, offsets)  # type: ignore[arg-type]


def numbers(values: Iterable[Any]) -> np.ndarray:
    """One number per sample; NaN where there is none. A mapping counts by its score, as reward functions give it."""
    return np.array([_number(value) for value in values], np.float64)


def _number(value: Any) -> float:
    if isinstance(value, EncodedArray):
        value = value.decode()
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, _NUMBERS):
        return float(value)
    if isinstance(value, str) and _NUMBER_TEXT.fullmatch(value):
        return float(value)  # numpy's numbers are text in JSON lines written with default=str
    if isinstance(value, Mapping):
        found = [value[key] for key in _REWARD_KEYS if isinstance(value.get(key), _NUMBERS)]
        if not found:
            found = [item for item in value.values() if isinstance(item, _NUMBERS)]
            found = found if len(found) == 1 else []
        return float(found[0]) if found else float("nan")
    return float("nan")


def prompt_hashes(tokens: Ragged, loss_mask: Ragged) -> tuple[str, ...]:
    """A hash of each row's tokens before the first that is trained on (the whole row when none is)."""
    if not np.array_equal(tokens.offsets, loss_mask.offsets):
        raise Malformed("tokens and loss mask differ in length")
    return hashes_of_prompts(tokens, loss_mask)


def ids_in_order(groups: Iterable[Any]) -> tuple[SampleId, ...]:
    """Sample ids from each row's group alone: the run is how many of the group came before."""
    seen: Counter[str] = Counter()
    ids = []
    for group in groups:
        name = str(group)
        ids.append(SampleId(name, seen[name]))
        seen[name] += 1
    return tuple(ids)


def text_group(text: Any) -> str:
    """A short stable name for a prompt of which only the text (or the chat messages) is known."""
    return "text-" + blake2b(str(text).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
