"""One sample, with everything the recording knows about it: its row of every record it appears in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.recording.kinds import KINDS, Shape
from rldbg.recording.records import EncodedArray, Ragged, Record, RecordKey

_ORDER = {name: place for place, name in enumerate(KINDS)}
_TOKENS = ("tokens", "input_tokens", "target_tokens", "loss_mask")
_ROW_SHAPES = frozenset({Shape.TOKENS, Shape.RESPONSE, Shape.SAMPLES})
# Tensors whose first dimension is the sample.
_ROWS_OF_TENSORS = frozenset({"input_ids", "experts", "expert_weights"})


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What one record says about the sample: the fields that have one row per sample, cut to this one's."""

    key: RecordKey
    row: int
    fields: Mapping[str, Any]
    source: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample at one step, joined over kinds by its id."""

    id: SampleId
    step: int
    prompt_hash: str
    rows: tuple[SampleRow, ...]

    def find(self, name: str) -> Any:
        """The first row that has this field, in the order of kinds; None when none has."""
        return next((row.fields[name] for row in self.rows if name in row.fields), None)

    def single_values(self) -> dict[str, Any]:
        """Values that are not per token (the reward, texts), each once; with its kind where another kind differs."""
        found: dict[str, Any] = {}
        for row in self.rows:
            for name, value in row.fields.items():
                if isinstance(value, dict):
                    for key, item in value.items():
                        _keep(found, str(key), row.key.kind, item)
                elif np.ndim(value) == 0:
                    _keep(found, name, row.key.kind, value)
        return found


def _keep(found: dict[str, Any], name: str, kind: str, value: Any) -> None:
    if name in found and str(found[name]) != str(value):
        name = f"{kind}.{name}"
    found[name] = value


def causal_order(kind: str) -> tuple[int, str]:
    """Sorts kinds as training makes them, from the trajectory to the metrics; a user's own kinds come last."""
    return _ORDER.get(kind, len(_ORDER)), kind


def can_have_samples(kind: str) -> bool:
    """False for declared kinds without samples, which are often most of a recording's bytes."""
    return kind not in KINDS or KINDS[kind].has_samples


def rows_of(record: Record, ids: Sequence[SampleId]) -> list[tuple[SampleId, SampleRow]]:
    """The rows of these samples in a record."""
    wanted = set(ids)
    held = _with_rows(record)
    return [
        (sample, SampleRow(record.key, row, {name: value[row] for name, value in held.items()}, record.source))
        for row, sample in enumerate(record.samples)
        if sample in wanted
    ]


def only_tokens(row: SampleRow) -> list[SampleRow]:
    """The row with the sample's tokens and their mask alone; nothing where it has none."""
    kept = {name: row.fields[name] for name in _TOKENS if name in row.fields}
    return [SampleRow(row.key, row.row, kept, row.source)] if kept else []


def _with_rows(record: Record) -> dict[str, Any]:
    """A record's per-sample fields, and those of `extra` that have one value per sample."""
    everything = {**record.extra, **record.fields}
    return {name: value for name, value in everything.items() if _has_rows(record, name, value)}


def _has_rows(record: Record, name: str, value: Any) -> bool:
    count = len(record.samples)
    if isinstance(value, Ragged):
        return len(value) == count
    if isinstance(value, np.ndarray | EncodedArray):
        kind = KINDS.get(record.key.kind)
        field = kind.field(name) if kind else None
        is_tensor = field is not None and field.shape not in _ROW_SHAPES and name not in _ROWS_OF_TENSORS
        return len(value.shape) > 0 and value.shape[0] == count and not is_tensor
    return isinstance(value, list) and len(value) == count
