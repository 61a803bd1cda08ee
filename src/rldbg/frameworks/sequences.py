"""A framework's batch as rows: one translation for padded, packed and listed tensors.

B samples, T columns of tokens, N packed tokens. What belongs to tokens is put on the axis of whole sequences, without
padding: values with fewer columns than the tokens belong to the last ones (responses, or the log probs of next tokens).
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.core import SampleId, prompt_hash

FieldLists = dict[str, list[Any]]
"""Columns by name; each has one entry per sample, an array of its tokens' values or a number."""


class Sequences:
    """The token sequences of a batch."""

    def __init__(
        self, tokens: Sequence[np.ndarray], held_bt: np.ndarray | None = None, *, packed: bool = False
    ) -> None:
        self.tokens = list(tokens)
        self._held_bt = held_bt
        self._is_packed = packed

    @classmethod
    def padded(cls, tokens_bt: Any, attention_mask_bt: Any) -> "Sequences":
        """Padding may be on either side, or in the middle."""
        ids, held = on_host(tokens_bt), on_host(attention_mask_bt) != 0
        return cls([row[kept] for row, kept in zip(ids, held, strict=True)], held)

    @classmethod
    def packed(cls, tokens_n: Any, offsets: Any) -> "Sequences":
        """All sequences behind one another; `offsets` are where each begins, and the end (cu_seqlens)."""
        return cls(np.split(on_host(tokens_n).reshape(-1), on_host(offsets)[1:-1]), packed=True)

    @classmethod
    def listed(cls, tokens: Iterable[Any]) -> "Sequences":
        """One tensor per sequence."""
        return cls([on_host(row).reshape(-1) for row in tokens])

    def rows(self, *, next_token: Sequence[str] = (), **columns: Any) -> FieldLists:
        """The columns that are not None, beside the tokens. Those in `next_token` have at t what belongs to t + 1."""
        found: FieldLists = {"tokens": self.tokens}
        for name, value in columns.items():
            if value is not None:
                parts = list(self._parts(value, next_token=name in next_token))
                found[name] = [_at_the_end(part, len(tokens)) for part, tokens in zip(parts, self.tokens, strict=True)]
        return found

    def _parts(self, value: Any, *, next_token: bool) -> Iterator[np.ndarray]:
        if isinstance(value, list | tuple):
            yield from (on_host(row) for row in value)
            return
        array = on_host(value)
        if self._is_packed:
            ends = np.cumsum([len(row) for row in self.tokens])[:-1]
            for part in np.split(array.reshape(-1)[: sum(map(len, self.tokens))], ends):
                yield part[:-1] if next_token else part
            return
        if self._held_bt is None or array.ndim == 1:
            yield from array
            return
        cut = array[:, :-1] if next_token and array.shape == self._held_bt.shape else array
        missing = self._held_bt.shape[1] - cut.shape[1]
        for row, held in zip(cut, self._held_bt, strict=True):
            yield np.concatenate([np.zeros(missing, row.dtype), row])[held]


def on_host(value: Any) -> np.ndarray:
    """A tensor, a number or a list as an array; low precision as float32."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach()
    tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return np.asarray(tensor.float().cpu().numpy() if tensor.is_floating_point() else tensor.cpu().numpy())


def joined(parts: Iterable[FieldLists]) -> FieldLists:
    """The samples of several batches, in order, in the columns that all of them have."""
    known = list(parts)
    shared = [name for name in known[0] if all(name in part for part in known)]
    return {name: [row for part in known for row in part[name]] for name in shared}


def chosen(rows: FieldLists, kept: Sequence[int]) -> FieldLists:
    """These samples only."""
    return {name: [column[row] for row in kept] for name, column in rows.items()}


@dataclass(frozen=True, slots=True)
class Named:
    """Which sample a row is, and where its response begins."""

    sample: SampleId
    prompt_hash: str
    start: int


Seen = dict[tuple[str, int], int]
"""How many samples of one prompt have had the same response, by the hashes of both."""


def named(rows: Mapping[str, Sequence[np.ndarray]], step: int, seen: Seen | None = None) -> list[Named]:
    """Ids that every process gives to a sample without asking another.

    A group is a prompt at a step; a sample of it is known by its tokens, and equal ones are counted: from those that
    were `seen` before, in other batches.
    """
    found: list[Named] = []
    seen = {} if seen is None else seen
    for tokens, mask in zip(rows["tokens"], rows["loss_mask"], strict=True):
        trained = np.flatnonzero(mask)
        start = int(trained[0]) if len(trained) else len(tokens)
        prompt, response = tokens[:start].astype("<i8").tobytes(), tokens[start:].astype("<i8").tobytes()
        hashed, digest = prompt_hash(prompt), zlib.crc32(response) >> 1
        count = seen[hashed, digest] = seen.get((hashed, digest), -1) + 1
        found.append(Named(SampleId(f"{hashed}#{step}", digest + count), hashed, start))
    return found


def _at_the_end(values: np.ndarray, length: int) -> np.ndarray:
    """Values of the last tokens with zeros before them; a number of the whole sample as it is."""
    if values.ndim == 0:
        return values
    return np.concatenate([np.zeros(length - len(values), values.dtype), values])
