"""One form for the per-token fields of a record, whatever shape the trainer had them in.

Trainers hold the same batch as lists, as rows padded on the right, with prompts padded on the left, or as jagged
tensors. Analysis sees ragged rows without padding: sequences from the first real token to the last one, responses from
the first response token on. Records that already have that form pass unchanged.

What is padding is read from `attention_mask` where the record has one. Without it, it is a run of one token id at
either end of rows, untrained, whose id occurs nowhere else untrained in the batch, or whose runs have many lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rldbg.core import SampleId
from rldbg.recording import KINDS, EncodedArray, Ragged, Record, Shape, prompt_lengths

SEQUENCE_KINDS = frozenset({"trajectory", "prepared_trajectories"})
_RESPONSE_MASKS = {"forward_data": "response_mask", "is_loss_debug": "effective_valid"}
# The value for prompt positions in a field that was recorded for the response only.
_ON_PROMPT = {"policy_versions": -1}
_MASK = "attention_mask"
# Texts do not begin or end in runs of one token of so many lengths.
_MANY = 3
_OF_SEQUENCES = frozenset({"input_ids", "position_ids", _MASK})


class Extent(NamedTuple):
    """How long a sample's sequence and its prompt are; where its response began in the padded record, and how wide that
    was (0 for ragged rows)."""

    length: int
    prompt: int
    column: int = 0
    width: int = 0


Extents = Mapping[SampleId, Extent]


def unpad_sequences(record: Record) -> Record:
    """A trajectory record whose per-token fields are ragged rows of one length per sample."""
    tokens, loss_mask = record.fields.get("tokens"), record.fields.get("loss_mask")
    if tokens is None or loss_mask is None:
        return record
    fields = dict(record.fields)
    if _is_padded(tokens):
        starts, ends = _real_tokens(record, np.asarray(tokens))
        for name, value in fields.items():
            if _is_padded(value) and value.shape == tokens.shape:
                fields[name] = _cut(value, starts, ends)
        fields.pop(_MASK, None)
    if not isinstance(fields["tokens"], Ragged) or not isinstance(fields["loss_mask"], Ragged):
        return record
    _widen_responses(record.key.kind, fields)
    if all(fields.get(name) is value for name, value in record.fields.items()):
        return record
    return replace(record, fields=fields)


def extents(record: Record) -> dict[SampleId, Extent]:
    """How far each sample of a trajectory record reaches."""
    ragged = unpad_sequences(record)
    tokens, loss_mask = ragged.fields.get("tokens"), ragged.fields.get("loss_mask")
    if not isinstance(tokens, Ragged) or not isinstance(loss_mask, Ragged):
        return {}
    prompts = prompt_lengths(loss_mask.values, loss_mask.offsets)
    columns, width = prompts, 0
    if _is_padded(record.fields["tokens"]):
        dense = np.asarray(record.fields["tokens"])
        columns, width = prompts + _real_tokens(record, dense)[0], dense.shape[1]
    rows = zip(tokens.lengths.tolist(), prompts.tolist(), columns.tolist(), strict=True)
    return {sample: Extent(*row, width) for sample, row in zip(record.samples, rows, strict=False)}


# In the place of padding ids, which say nothing: no token has it.
NO_TOKEN = -1


def mark_padding(record: Record, known: Callable[[], Extents]) -> Record:
    """A record whose padded `input_ids`, without an attention mask, have one id for padding, where samples are known.

    They are laid out as the rows of the trajectory; or prompts end and responses begin at one column, that of the
    response mask.
    """
    ids, mask = record.fields.get("input_ids"), record.fields.get("response_mask")
    if not _is_padded(ids) or mask is None or _MASK in record.fields or not record.samples:
        return record
    reach = known()
    dense = np.asarray(ids)
    prompts = dense.shape[1] - np.asarray(mask).shape[1] if _is_padded(mask) else 0
    if len(record.samples) != len(dense) or not all(sample in reach for sample in record.samples):
        return record
    columns = np.arange(dense.shape[1])[None]
    length, prompt, column, width = (
        np.array([reach[sample][n] for sample in record.samples])[:, None] for n in range(4)
    )
    is_alike = bool((width == dense.shape[1]).all())
    if prompts <= 0 and not is_alike:
        return record
    starts = column - prompt if is_alike else prompts - prompt
    real = (columns >= starts) & (columns < starts + length)
    # Rows that do not hold their sample's tokens there are laid out in another way.
    if (real.sum(1) != length[:, 0]).any():
        return record
    return replace(record, fields={**record.fields, "input_ids": np.where(real, dense, NO_TOKEN)})


def unpad_responses(record: Record, known: Callable[[], Extents]) -> Record:
    """A record of response values that begin with the response and, without a mask of their own, end with it.

    Many loops keep a value for every position of the padded sequence and let the mask say which of them are the
    response's. Such columns are recognised by their mask, which begins behind the prompt in every row, or without a
    mask by their number.
    """
    kind = record.key.kind
    declared = {field.name for field in KINDS[kind].fields if field.shape is Shape.RESPONSE} if kind in KINDS else set()
    padded = {name: value for name, value in record.fields.items() if name in declared and _is_padded(value)}
    # What a loop records beside them in their shape, such as a mask of its own, has their columns.
    shapes = {value.shape for value in padded.values()}
    padded |= {
        name: value
        for name, value in record.fields.items()
        if name not in _OF_SEQUENCES and _is_padded(value) and value.shape in shapes
    }
    mask = padded.get(_RESPONSE_MASKS.get(kind, ""))
    if not padded or not record.samples or (kind in _RESPONSE_MASKS and mask is None):
        return record
    trained = None if mask is None else np.asarray(mask) != 0
    if trained is not None and trained[:, :1].any():  # the response begins in column 0, as declared
        return record
    reach = known()
    if not all(sample in reach for sample in record.samples):
        return record
    length, prompt, column, width = (
        np.array(values) for values in zip(*(reach[sample] for sample in record.samples), strict=True)
    )
    responses, fields = length - prompt, dict(record.fields)
    for name, value in padded.items():
        columns = value.shape[1]
        starts = np.zeros(len(value), np.int64)
        if columns > responses.max() and ((width == columns) | (width == columns + 1)).all():
            starts = column - (width - columns)
        elif trained is not None:
            used = trained.any(axis=1) & (prompt > 1)
            if not used.any() or (np.argmax(trained, axis=1)[used] < prompt[used] - 1).any():
                return record
            starts = _response_starts(trained, prompt, used)
        fields[name] = _cut(value, starts, np.minimum(starts + responses, columns))
    return replace(record, fields=fields)


def _is_padded(value: Any) -> bool:
    return isinstance(value, np.ndarray | EncodedArray) and len(value.shape) == 2 and value.shape[0] > 0


def _cut(value: np.ndarray | EncodedArray, starts: np.ndarray, ends: np.ndarray) -> Ragged:
    """Columns starts[i] to ends[i] of each row i, as ragged rows."""
    columns = np.arange(value.shape[1])
    chosen = (columns >= starts[:, None]) & (columns < ends[:, None])
    offsets = np.concatenate([[0], np.cumsum(chosen.sum(axis=1))])
    if isinstance(value, EncodedArray):
        return Ragged(EncodedArray(value.bits[chosen], value.dtype), offsets)  # type: ignore[arg-type]
    return Ragged(value[chosen], offsets)


def _real_tokens(record: Record, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the tokens of each row begin and end."""
    rows, width = tokens.shape
    attention = record.fields.get(_MASK)
    if _is_padded(attention) and attention is not None and attention.shape == tokens.shape:
        attended = np.asarray(attention) != 0
        used = attended.any(axis=1)
        starts = np.where(used, np.argmax(attended, axis=1), 0)
        return starts, np.where(used, width - np.argmax(attended[:, ::-1], axis=1), 0)
    loss_mask = record.fields["loss_mask"]
    trained = np.zeros(tokens.shape, bool)
    if _is_padded(loss_mask) and loss_mask.shape == tokens.shape:
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
        is_known = pad in behind or leading[at_start].max() > 1
        if is_known and _is_fill(leading, at_start) and (_lengths(leading, at_start) >= _MANY or only_at_ends(pad)):
            starts[at_start] += leading[at_start]
    return np.minimum(starts, ends), ends


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


def _widen_responses(kind: str, fields: dict[str, Any]) -> None:
    """Per-token fields that were recorded for the response only are placed after the prompt."""
    tokens, loss_mask = fields["tokens"], fields["loss_mask"]
    if not np.array_equal(tokens.offsets, loss_mask.offsets):
        return
    prompts = prompt_lengths(loss_mask.values, loss_mask.offsets)
    responses = tokens.lengths - prompts
    for field in KINDS[kind].fields:
        value = fields.get(field.name)
        if field.shape is not Shape.TOKENS or value is None:
            continue
        if _is_padded(value) and len(value) == len(tokens):
            value = _cut(value, np.zeros(len(value), np.int64), np.minimum(responses, value.shape[1]))
        if not isinstance(value, Ragged) or np.array_equal(value.offsets, tokens.offsets):
            continue
        if not np.array_equal(value.lengths, responses):
            continue
        flat = np.asarray(value.values)  # decoded where numpy lacks the dtype
        wide = np.full(len(tokens.values), _ON_PROMPT.get(field.name, 0), flat.dtype)
        position = np.arange(len(wide)) - np.repeat(tokens.offsets[:-1], tokens.lengths)
        wide[position >= np.repeat(prompts, tokens.lengths)] = flat
        fields[field.name] = Ragged(wide, tokens.offsets)


def _response_starts(trained: np.ndarray, prompt: np.ndarray, used: np.ndarray) -> np.ndarray:
    """The column in which each row's response begins.

    Most rows decide: a row whose mask lacks its first token is out of line with the others, and stays comparable.
    """
    first = np.argmax(trained, axis=1)
    behind, counts = np.unique((first - prompt)[used], return_counts=True)
    column, same = np.unique(first[used], return_counts=True)
    if same.max() >= counts.max():  # prompts padded on the left: all responses begin in one column
        return np.full(len(prompt), column[np.argmax(same)])
    starts: np.ndarray = prompt + behind[np.argmax(counts)]
    return starts
