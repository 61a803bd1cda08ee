"""Whether a record is what its kind declares. Deviations are reported, never corrected: the record is kept
unchanged."""

from collections.abc import Mapping
from typing import Any

from rldbg.recording.kinds import KINDS, Shape

ROW_SHAPES = frozenset({Shape.TOKENS, Shape.RESPONSE, Shape.SAMPLES})
_SHAPES = {(kind.name, field.name): field.shape for kind in KINDS.values() for field in kind.fields}


def shape_of(kind: str, field: str) -> Shape | None:
    """What a field is declared to hold; None for a field or kind of the user's own."""
    return _SHAPES.get((kind, field))


def row_count(value: Any) -> int | None:
    """How many rows a value has, if it has rows."""
    if getattr(value, "is_nested", False):  # not every layout of nested tensors has a shape
        return int(value.size(0))
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(value) if hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping) else None


def rows_of(kind: str, fields: Mapping[str, Any], samples: int) -> int:
    """How many samples a record holds: as many as it names, else as many as its first field by sample has rows."""
    if samples:
        return samples
    for name, value in fields.items():
        if shape_of(kind, name) in ROW_SHAPES:
            return row_count(value) or 0
    return 0


def problems(kind: str, fields: Mapping[str, Any], samples: int) -> list[str]:
    """What is wrong with a record, in words; nothing for a user's own kind."""
    if kind not in KINDS:
        return []
    found = [
        f"{kind}: the field {field.name} is missing"
        for field in KINDS[kind].fields
        if not field.optional and field.name not in fields
    ]
    rows = rows_of(kind, fields, samples)
    for name, value in fields.items():
        if shape_of(kind, name) in ROW_SHAPES and row_count(value) not in (rows, None):
            found.append(f"{kind}: the field {name} has {row_count(value)} rows, the record has {rows} samples")
    return found
