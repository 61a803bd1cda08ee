"""Which columns of padded rows are padding.

Where a record has an `attention_mask`, it says so. Without one, padding is a run of one token id at either end of rows,
untrained, whose id occurs nowhere else untrained in the batch, or whose runs have many lengths.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rldbg.recording import EncodedArray, Record

# Texts do not begin or end in runs of one token of so many lengths.
_MANY = 3


def is_padded(value: Any) -> bool:
    return isinstance(value, np.ndarray | EncodedArray) and len(value.shape) == 2 and value.shape[0] > 0


def real_tokens(record: Record, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the tokens of each row begin and end."""
    rows, width = tokens.shape
    attention = record.fields.get("attention_mask")
    if is_padded(attention) and attention is not None and attention.shape == tokens.shape:
        attended = np.asarray(attention) != 0
        used = attended.any(axis=1)
        starts = np.where(used, np.argmax(attended, axis=1), 0)
        return starts, np.where(used, width - np.argmax(attended[:, ::-1], axis=1), 0)
    loss_mask = record.fields["loss_mask"]
    trained = np.zeros(tokens.shape, bool)
    if is_padded(loss_mask) and loss_mask.shape == tokens.shape:
        trained = np.asarray(loss_mask) != 0
    # No run of padding may reach a trained token.
    leading = np.minimum(_leading(tokens), np.where(trained.any(axis=1), np.argmax(trained, axis=1), width))
    last = np.where(trained.any(axis=1), np.argmax(trained[:, ::-1], axis=1), width)
    trailing = np.minimum(_leading(tokens[:, ::-1]), last)
    starts, ends = np.zeros(rows, np.int64), np.full(rows, width)

    def only_at_ends(pad: int) -> bool:
        return _only_at_ends(tokens, pad, leading, trailing, trained)

    for pad in np.unique(tokens[:, -1][trailing > 0]).tolist():
        at_end = (tokens[:, -1] == pad) & (trailing > 0)
        if _is_fill(trailing, at_end) and (_lengths(trailing, at_end) >= _MANY or only_at_ends(pad)):
            ends[at_end] -= trailing[at_end]
    behind = np.unique(tokens[:, -1][ends < width]).tolist()
    for pad in np.unique(tokens[:, 0][leading > 0]).tolist():
        at_start = (tokens[:, 0] == pad) & (leading > 0)
        is_known = pad in behind or leading[at_start].max() > 1 or _aligns_prompts(tokens, leading, at_start, trained)
        if is_known and _is_fill(leading, at_start) and (_lengths(leading, at_start) >= _MANY or only_at_ends(pad)):
            starts[at_start] += leading[at_start]
    return np.minimum(starts, ends), ends


def _aligns_prompts(tokens: np.ndarray, leading: np.ndarray, rows: np.ndarray, trained: np.ndarray) -> bool:
    """Whether without the runs of these rows all prompts begin with one token, as they do not with them, and are those
    of other rows, or all responses begin in one column: prompts that differ by one token are padded by one."""
    begins = np.where(rows, np.minimum(leading, tokens.shape[1] - 1), 0)
    first = np.argmax(trained, axis=1)
    if rows.all() or len(np.unique(tokens[np.arange(len(tokens)), begins])) > 1 or not trained.any(axis=1).all():
        return False
    prompts = [row[begin:end].tobytes() for row, begin, end in zip(tokens, begins, first, strict=True)]
    others = {prompt for prompt, is_padded_row in zip(prompts, rows, strict=True) if not is_padded_row}
    return len(np.unique(first)) == 1 or others.issuperset(prompts)


def _is_fill(run: np.ndarray, rows: np.ndarray) -> bool:
    """Padding fills rows up to one width, so its runs differ; what all rows have in common is not padding."""
    return not rows.all() or bool(np.ptp(run) > 0)


def _lengths(run: np.ndarray, rows: np.ndarray) -> int:
    """How many different lengths the runs of these rows have."""
    return len(np.unique(run[rows]))


def _only_at_ends(tokens: np.ndarray, pad: int, leading: np.ndarray, trailing: np.ndarray, trained: np.ndarray) -> bool:
    """Whether a token id occurs only in the runs at the ends of rows, and among trained tokens, which were sampled."""
    columns = np.arange(tokens.shape[1])
    inside = (columns >= leading[:, None]) & (columns < tokens.shape[1] - trailing[:, None])
    return not bool(((tokens == pad) & inside & ~trained).any())


def _leading(tokens: np.ndarray) -> np.ndarray:
    """How many equal values each row begins with."""
    other = tokens != tokens[:, :1]
    run: np.ndarray = np.where(other.any(axis=1), np.argmax(other, axis=1), tokens.shape[1])
    return run
