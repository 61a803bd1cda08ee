"""One sample token by token: every per-token field of every kind, aligned with the tokens it belongs to.

A row as long as the sequence has one value per token; a shorter one covers the end of the sequence (the response, or
all but the first token). Padded rows are cut by their response mask, or else to the length of the response.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from rldbg.recording.kinds import KINDS, Shape
from rldbg.recording.samples import Sample, SampleRow

_NOT_SHOWN = frozenset({"tokens", "input_ids", "input_tokens", "target_tokens", "response_mask", "loss_mask"})
_PADDED_KINDS = frozenset({"old_log_probs", "forward_data", "is_loss_debug", "value_loss"})


class TokenColumns:
    """tokens [T], trained [T] (None when no mask is known), and named columns [T] with NaN where nothing is known."""

    def __init__(self, sample: Sample) -> None:
        self.tokens = _tokens(sample)
        self.trained = _trained(sample, len(self.tokens))
        self.columns: dict[str, np.ndarray] = {}
        self.unaligned: dict[str, Any] = {}
        self._known: dict[str, list[np.ndarray]] = defaultdict(list)
        if len(self.tokens):
            for row in sample.rows:
                self._add(row)

    @property
    def response_start(self) -> int:
        """The first token that is trained on; the whole sequence is prompt when none is."""
        trained = np.flatnonzero([] if self.trained is None else self.trained)
        return int(trained[0]) if len(trained) else len(self.tokens)

    def _add(self, row: SampleRow) -> None:
        kind = KINDS.get(row.key.kind)
        for name, value in row.fields.items():
            values = np.asarray(value) if not isinstance(value, dict | str | list) else None
            if name in _NOT_SHOWN or values is None or values.ndim != 1 or values.dtype.kind not in "biuf":
                continue
            field = kind.field(name) if kind else None
            if field is not None and field.shape is Shape.SAMPLES:
                continue
            column = self._aligned(row, values)
            if column is None:
                self.unaligned[self._title(row, name)] = values
            elif not any(_is_same(column, known) for known in self._known[name]):
                self._known[name].append(column)
                self.columns[self._title(row, name)] = column

    def _title(self, row: SampleRow, name: str) -> str:
        """The field's name, with its kind and then its rank where another record's values of it differ."""
        kind, key = row.key.kind, row.key
        candidates = (name, f"{kind}.{name}", f"{kind}.{name} rank {key.rank}", f"{key} {name}")
        return next((title for title in candidates if title not in self.columns), candidates[-1])

    def _aligned(self, row: SampleRow, values: np.ndarray) -> np.ndarray | None:
        if row.key.kind in _PADDED_KINDS and len(values) != len(self.tokens):
            mask = row.fields.get("response_mask", row.fields.get("effective_valid"))
            if mask is not None and np.shape(mask) == values.shape and np.asarray(mask).any():
                last = int(np.flatnonzero(np.asarray(mask))[-1]) + 1
                values = values[:last]
            else:
                values = values[: len(self.tokens) - self.response_start]
        if not 0 < len(values) <= len(self.tokens):
            return None
        column = np.full(len(self.tokens), np.nan)
        column[len(self.tokens) - len(values) :] = values
        return column


def _is_same(first: np.ndarray, second: np.ndarray) -> bool:
    """Equal in single precision: one kind may hold as a tensor what another has as Python numbers."""
    return np.array_equal(first.astype(np.float32), second.astype(np.float32), equal_nan=True)


def _tokens(sample: Sample) -> np.ndarray:
    tokens = sample.find("tokens")
    if tokens is not None:
        return np.asarray(tokens)
    inputs, targets = sample.find("input_tokens"), sample.find("target_tokens")
    if inputs is not None and targets is not None:
        return np.append(np.asarray(inputs)[:1], np.asarray(targets))
    ids = sample.find("input_ids")
    return np.asarray(ids) if ids is not None else np.empty(0, np.int64)


def _trained(sample: Sample, length: int) -> np.ndarray | None:
    mask = sample.find("loss_mask")
    if mask is None or not 0 < len(mask) <= length:
        return None
    trained = np.zeros(length, bool)
    trained[length - len(mask) :] = np.asarray(mask).astype(bool)
    return trained
