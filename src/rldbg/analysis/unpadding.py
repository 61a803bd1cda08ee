"""One form for the per-token fields of a record, whatever shape the trainer had them in.

Trainers hold the same batch as lists, as rows padded on the right, with prompts padded on the left, or as jagged
tensors. Analysis sees ragged rows without padding: sequences from the first real token to the last one, responses from
the first response token on. Records that already have that form pass unchanged.

What is padding is read from `attention_mask` where the record has one, else recognised (`padding.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np

from rldbg.analysis.padding import is_padded, real_tokens
from rldbg.analysis.response_columns import (
    Extent,
    Extents,
    end_together,
    is_one_early,
    layout,
    response_starts,
    sequence_starts,
)
from rldbg.core import SampleId
from rldbg.recording import KINDS, EncodedArray, Ragged, Record, Shape, prompt_lengths

SEQUENCE_KINDS = frozenset({"trajectory", "prepared_trajectories"})
_RESPONSE_MASKS = {"forward_data": "response_mask", "is_loss_debug": "effective_valid", "value_loss": "response_mask"}
# The value for prompt positions in a field that was recorded for the response only.
_ON_PROMPT = {"policy_versions": -1}
_MASK = "attention_mask"
_OF_SEQUENCES = frozenset({"input_ids", "position_ids", _MASK})


def unpad_sequences(record: Record) -> Record:
    """A trajectory record whose per-token fields are ragged rows of one length per sample."""
    tokens, loss_mask = record.fields.get("tokens"), record.fields.get("loss_mask")
    if tokens is None or loss_mask is None:
        return record
    fields = dict(record.fields)
    if is_padded(tokens):
        starts, ends = real_tokens(record, np.asarray(tokens))
        for name, value in fields.items():
            if is_padded(value) and value.shape == tokens.shape:
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
    if is_padded(record.fields["tokens"]):
        dense = np.asarray(record.fields["tokens"])
        columns, width = prompts + real_tokens(record, dense)[0], dense.shape[1]
    log_probs = ragged.fields.get("logprobs")
    sampled: Iterable[Any] = repeat(None, len(tokens))
    if isinstance(log_probs, Ragged) and np.array_equal(log_probs.offsets, tokens.offsets):
        sampled = log_probs
    rows = zip(tokens.lengths.tolist(), prompts.tolist(), columns.tolist(), tokens, loss_mask, sampled, strict=True)
    return {
        sample: Extent(
            length,
            prompt,
            column,
            width,
            np.asarray(ids),
            np.asarray(mask) != 0,
            None if drawn is None else np.asarray(drawn),
        )
        for sample, (length, prompt, column, ids, mask, drawn) in zip(record.samples, rows, strict=False)
    }


# Instead of padding ids, which say nothing: no token has it.
NO_TOKEN = -1
# Where a record of response values that has no mask of its own is trained on, as the trajectories say.
TRAINED = "_rldbg_trained"


def mark_padding(record: Record, known: Callable[[], Extents]) -> Record:
    """A record whose padded `input_ids`, without an attention mask, have one id for padding, where samples are known.

    Rows hold their sample's tokens somewhere; or they are laid out as the rows of the trajectory; or prompts end and
    responses begin at one column, that of the response mask.
    """
    ids, mask = record.fields.get("input_ids"), record.fields.get("response_mask")
    if not is_padded(ids) or mask is None or _MASK in record.fields or not record.samples:
        return record
    reach = known()
    dense = np.asarray(ids)
    prompts = dense.shape[1] - np.asarray(mask).shape[1] if is_padded(mask) else 0
    if len(record.samples) != len(dense) or not all(sample in reach for sample in record.samples):
        return record
    columns = np.arange(dense.shape[1])[None]
    length, prompt, column, width = (
        np.array([reach[sample][n] for sample in record.samples])[:, None] for n in range(4)
    )
    is_alike = bool((width == dense.shape[1]).all())
    found = sequence_starts(dense, [reach[sample].tokens for sample in record.samples])
    if prompts <= 0 and not is_alike and found is None:
        return record
    starts = column - prompt if is_alike else prompts - prompt
    starts = starts if found is None else found[:, None]
    real = (columns >= starts) & (columns < starts + length)
    # Rows that do not hold their sample's tokens there are laid out in another way.
    if (real.sum(1) != length[:, 0]).any():
        return record
    return replace(record, fields={**record.fields, "input_ids": np.where(real, dense, NO_TOKEN)})


def unpack(record: Record, known: Callable[[], Extents]) -> Record:
    """A record whose rows are several samples one behind the other, with one row per sample.

    Positions that start again say where; else rows that are known samples, and padding behind them.
    """
    ids = record.fields.get("input_ids")
    if record.samples or not is_padded(ids) or ids is None:
        return record
    dense = np.asarray(ids)
    positions = np.asarray(record.fields.get("position_ids"))
    places = positions if positions.shape == dense.shape else None
    sequences = {np.ascontiguousarray(item.tokens, "<i8").tobytes(): item.length for item in known().values()}
    lengths = [_packed_lengths(row, None if places is None else places[n], sequences) for n, row in enumerate(dense)]
    # The last row of a loop that packs may be one sample, from end to end.
    is_alone = _MASK not in record.fields and lengths == [[dense.shape[1]]]
    if any(found is None for found in lengths) or not (is_alone or any(len(found or ()) > 1 for found in lengths)):
        return record
    offsets = np.concatenate([[0], np.cumsum([size for found in lengths for size in found or ()])])
    kept = np.arange(dense.shape[1])[None] < np.array([sum(found or ()) for found in lengths])[:, None]
    fields = dict(record.fields)
    for name in _OF_SEQUENCES & fields.keys():
        if is_padded(fields[name]) and fields[name].shape == dense.shape:
            fields[name] = Ragged(np.asarray(fields[name])[kept], offsets)
    return replace(record, fields=fields)


def _packed_lengths(row: np.ndarray, places: np.ndarray | None, sequences: Mapping[bytes, int]) -> list[int] | None:
    """The lengths of the samples that a row consists of; None where it does not consist of known ones."""
    cuts = None if places is None else [*np.flatnonzero(places == 0).tolist(), len(row)]
    found: list[int] = []
    start = 0
    wide = np.ascontiguousarray(row, "<i8")
    sizes = sorted(set(sequences.values()), reverse=True)
    while start < len(row):
        fitting = (size for size in sizes if wide[start : start + size].tobytes() in sequences)
        size = next((size for size in fitting if cuts is None or start + size in cuts), None)
        if size is None:
            break
        found.append(size)
        start += size
    is_filled = len(np.unique(row[start:])) <= 1
    return found if found and is_filled else None


def unpad_responses(record: Record, known: Callable[[], Extents]) -> Record:
    """A record of response values that begin with the response and, without a mask of their own, end with it.

    Many loops keep a value for every position of the padded sequence and let the mask say which of them are the
    response's. Such columns are recognised by their mask, which begins behind the prompt in every row, or without a
    mask by their number.
    """
    kind = record.key.kind
    declared = {field.name for field in KINDS[kind].fields if field.shape is Shape.RESPONSE} if kind in KINDS else set()
    record = _cut_prompts(record, declared, known)
    padded = {name: value for name, value in record.fields.items() if name in declared and is_padded(value)}
    # What a loop records beside them in their shape, such as a mask of its own, has their columns.
    shapes = {value.shape for value in padded.values()}
    padded |= {
        name: value
        for name, value in record.fields.items()
        if name not in _OF_SEQUENCES and is_padded(value) and value.shape in shapes
    }
    mask = padded.get(_RESPONSE_MASKS.get(kind, ""))
    if not padded or not record.samples or (kind in _RESPONSE_MASKS and mask is None):
        return record
    trained = None if mask is None else np.asarray(mask) != 0
    if trained is not None and trained[:, :1].all():  # all responses begin in column 0, as declared
        return record
    reach = known()
    if not all(sample in reach for sample in record.samples):
        return record
    samples = [reach[sample] for sample in record.samples]
    if trained is not None and trained[:, :1].any() and not end_together(trained, trained, samples):
        return record
    length, prompt, column, width = (np.array([reach[sample][n] for sample in record.samples]) for n in range(4))
    responses, fields = length - prompt, dict(record.fields)
    ids = record.fields.get("input_ids")
    begun = None
    if ids is not None and is_padded(ids) and len(ids) == len(length):
        begun = sequence_starts(np.asarray(ids), [reach[sample].tokens for sample in record.samples])
    for name, value in padded.items():
        columns = value.shape[1]
        starts = np.zeros(len(value), np.int64)
        if begun is not None and ids is not None and columns in (ids.shape[1], ids.shape[1] - 1):
            ahead = ids.shape[1] - columns
            if not ahead and trained is not None and is_one_early(trained, begun + prompt):
                ahead = 1
            starts = begun + prompt - ahead
        elif end_together(value, trained, samples):
            starts = columns - responses
        elif (laid_out := layout(value, trained, samples)) is not None:
            starts = laid_out
        elif columns > responses.max() and ((width == columns) | (width == columns + 1)).all():
            starts = column - (width - columns)
            # Rows of their own width may be as wide by accident.
            if trained is not None and (width == columns).all() and is_one_early(trained, starts):
                starts = starts - 1
        elif trained is not None:
            used = trained.any(axis=1) & (prompt > 1)
            if not used.any() or (np.argmax(trained, axis=1)[used] < prompt[used] - 1).any():
                return record
            starts = response_starts(trained, prompt, responses, used)
        fields[name] = _cut(value, starts, np.minimum(starts + responses, columns))
    return replace(record, fields=fields)


def mark_trained(record: Record, known: Callable[[], Extents]) -> Record:
    """A record of old log probs with the mask of the trajectories: what it has elsewhere, or 0, is never used."""
    values = record.fields.get("old_log_probs")
    if record.key.kind != "old_log_probs" or not isinstance(values, Ragged) or not record.samples:
        return record
    reach = known()
    if not all(sample in reach for sample in record.samples):
        return record
    masks = []
    for sample, length in zip(record.samples, values.lengths.tolist(), strict=True):
        own = reach[sample].trained[reach[sample].prompt :][:length]
        masks.append(np.pad(own, (0, length - len(own)), constant_values=True))
    return replace(record, fields={**record.fields, TRAINED: Ragged(np.concatenate(masks), values.offsets)})


def _cut_prompts(record: Record, declared: set[str], known: Callable[[], Extents]) -> Record:
    """Ragged rows of response values that cover whole sequences, or all of a sequence but its first token, from their
    response on: every row says so by its length."""
    own = [value.offsets for name, value in record.fields.items() if name in declared and isinstance(value, Ragged)]
    if not own or not record.samples:
        return record
    # What a loop records beside them in their shape, such as the critic's values, has their places.
    ragged = {
        name: value
        for name, value in record.fields.items()
        if name not in _OF_SEQUENCES
        and isinstance(value, Ragged)
        and any(np.array_equal(value.offsets, o) for o in own)
    }
    reach = known()
    if not all(sample in reach for sample in record.samples):
        return record
    length, prompt = (np.array([reach[sample][n] for sample in record.samples]) for n in range(2))
    fields = dict(record.fields)
    for name, value in ragged.items():
        ahead = next((n for n in (0, 1) if np.array_equal(value.lengths, length - n)), None)
        if ahead is None or np.array_equal(value.lengths, length - prompt):
            continue
        position = np.arange(len(value.values)) - np.repeat(value.offsets[:-1], value.lengths)
        kept = position >= np.repeat(prompt - ahead, value.lengths)
        offsets = np.concatenate([[0], np.cumsum(np.minimum(length - prompt, value.lengths))])
        fields[name] = _chosen(value.values, kept, offsets)
    if all(fields[name] is value for name, value in ragged.items()):
        return record
    return replace(record, fields=fields)


def _cut(value: np.ndarray | EncodedArray, starts: np.ndarray, ends: np.ndarray) -> Ragged:
    """Columns starts[i] to ends[i] of each row i, as ragged rows."""
    columns = np.arange(value.shape[1])
    chosen = (columns >= starts[:, None]) & (columns < ends[:, None])
    return _chosen(value, chosen, np.concatenate([[0], np.cumsum(chosen.sum(axis=1))]))


def _chosen(value: np.ndarray | EncodedArray, chosen: np.ndarray, offsets: np.ndarray) -> Ragged:
    if isinstance(value, EncodedArray):
        return Ragged(EncodedArray(value.bits[chosen], value.dtype), offsets)  # type: ignore[arg-type]
    return Ragged(value[chosen], offsets)


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
        if is_padded(value) and len(value) == len(tokens):
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
