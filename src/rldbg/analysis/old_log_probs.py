"""Old log probs of a trainer beside those that a service has among the data of its losses.

The trainer records them for whole responses and without a mask; the service says which tokens count. So the trainer's
rows get the shape and the mask of the service's, and a token that is not trained on cannot differ.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rldbg.analysis.whole import Block
from rldbg.recording import Ragged, Record

_KIND, _FIELD, _MASK = "old_log_probs", "old_log_probs", "effective_valid"


def masked_like_losses(block: Block) -> Block:
    """The block with the old log probs of one side as the other side has them; as it is if that says no mask."""
    if block.rows_a is None or block.rows_b is None:
        return block
    if block.a.key.kind == _KIND:
        shaped = _shaped(block.a, block.rows_a, block.b, block.rows_b)
        return block if shaped is None else replace(block, a=shaped, rows_a=np.arange(len(block.rows_a)), samples=())
    shaped = _shaped(block.b, block.rows_b, block.a, block.rows_a)
    return block if shaped is None else replace(block, b=shaped, rows_b=np.arange(len(block.rows_b)))


def _shaped(record: Record, rows: np.ndarray, other: Record, other_rows: np.ndarray) -> Record | None:
    model, mask = other.fields.get(_FIELD), other.fields.get(_MASK)
    if model is None or mask is None or isinstance(model, Ragged) or isinstance(mask, Ragged):
        return None
    valid = other.array(_MASK)[other_rows]
    values = np.zeros(valid.shape, np.float32)
    every = list(record.rows(_FIELD))
    for place, row in enumerate(rows.tolist()):
        width = min(len(every[row]), valid.shape[1])
        values[place, :width] = every[row][:width]
    ids = tuple(record.samples[row] for row in rows.tolist()) if record.samples else ()
    key = record.key._replace(kind=other.key.kind)
    return replace(record, key=key, fields={_FIELD: values, _MASK: valid}, samples=ids, prompt_hashes=())
