"""The fingerprints of all tensors at one moment, as records of the kind `weights`.

One record per snapshot: the step is the version, micro 0 is what the trainer sent, and micro n + 1 is what replica n
of the engine holds. A worker of an engine that is not told versions writes a record of its own: `engine` names the
replica, and `at` says which version was sent last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rldbg.recording import Record, Recording
from rldbg.recording import open as open_recording
from rldbg.weights.fingerprint import BLOCKS, Fingerprint
from rldbg.weights.naming import map_names
from rldbg.weights.places import Box

SideName = Literal["sent", "held"]
# More pieces than any snapshot has: numbers of values do not collide.
_PIECES = 1 << 20


class BaseWeight(NamedTuple):
    """A tensor without its LoRA delta: fingerprint, norm and sum, and the norm of the delta (NaN: not recorded)."""

    total: int
    norm: float = math.nan
    sum: float = math.nan
    delta_norm: float = math.nan
    grid: tuple[tuple[int, ...], ...] = ()
    """By blocks, as a fingerprint's; empty where it is not recorded."""

    @classmethod
    def of(cls, base: Fingerprint, merged: Any, weight: Any) -> BaseWeight:
        """`merged` and `weight` are the tensors with and without the delta."""
        return cls.measured(base, float((merged.double() - weight.double()).norm()))

    @classmethod
    def measured(cls, base: Fingerprint, delta_norm: float) -> BaseWeight:
        grid = tuple(map(tuple, base.grid.tolist()))
        return cls(base.total, base.norm, base.sum, delta_norm, grid)

    def part(self, like: Fingerprint, box: Box) -> int | None:
        """The fingerprint of a piece; `like` is the whole tensor with its delta."""
        if box.is_whole or not self.grid:
            return self.total if box.is_whole else None
        return replace(like, grid=np.asarray(self.grid, dtype=np.int64)).part(box)


@dataclass(frozen=True, slots=True)
class WeightSnapshot:
    """What the trainer sent as a version, or what a replica holds after it. A name may have several pieces."""

    side: SideName
    version: int
    replica: int
    tensors: Sequence[Fingerprint]
    base: Mapping[str, BaseWeight]
    values: Mapping[tuple[str, tuple[int, ...]], Callable[[], np.ndarray]] = field(default_factory=dict)
    """By name and offset of a piece: reads its values, flat."""

    def by_name(self) -> dict[str, list[Fingerprint]]:
        found: dict[str, list[Fingerprint]] = {}
        for item in self.tensors:
            found.setdefault(item.name, []).append(item)
        return found


def snapshot_fields(
    side: SideName,
    tensors: Sequence[Fingerprint],
    *,
    replica: int = 0,
    base: Mapping[str, BaseWeight] | None = None,
    values: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The fields of a record. `base` has what tensors are without their LoRA delta; `values` are tensors to keep whole,
    which is asked for seldom: a record is then as large as they are."""
    grids = np.zeros((len(tensors), BLOCKS, BLOCKS), dtype=np.int64)
    blocks = np.full((len(tensors), BLOCKS, BLOCKS, 2), np.nan, dtype=np.float32)
    for number, item in enumerate(tensors):
        grids[number, : item.grid.shape[0], : item.grid.shape[1]] = item.grid
        if item.values is not None:
            blocks[number, : item.grid.shape[0], : item.grid.shape[1]] = item.values
    return {
        "side": side,
        "replica": replica,
        "names": [item.name for item in tensors],
        "dtypes": [item.dtype for item in tensors],
        "shapes": [list(item.box.global_shape) for item in tensors],
        "piece_shapes": [list(item.box.shape) for item in tensors],
        "piece_offsets": [list(item.box.offset) for item in tensors],
        "grid_shapes": [list(item.grid.shape) for item in tensors],
        "fingerprints": grids,
        "row_sums": np.asarray([item.by_row for item in tensors], dtype=np.int64),
        "column_sums": np.asarray([item.by_column for item in tensors], dtype=np.int64),
        "norms": np.asarray([item.norm for item in tensors], dtype=np.float64),
        "value_sums": np.asarray([item.sum for item in tensors], dtype=np.float64),
        "block_values": blocks,
        "base_fingerprints": {name: item.total for name, item in (base or {}).items()},
        "base_values": {name: list(item[1:4]) for name, item in (base or {}).items()},
        "base_grids": {name: [list(row) for row in item.grid] for name, item in (base or {}).items()},
        **({"value_names": list(values), "values": [_flat(tensor) for tensor in values.values()]} if values else {}),
    }


def value_fields(snapshot: int, number: int, name: str, tensor: Any, box: Box) -> dict[str, Any]:
    """A record of the kind `weight_values`: one tensor or piece, by number, of the record of `weights` whose micro is
    given."""
    place = {"whole_shape": list(box.global_shape), "offset": list(box.offset)}
    micro = snapshot * _PIECES + number
    return {"micro": micro, "snapshot": snapshot, "weight_name": name, **place, "values": tensor.detach()}


def _flat(tensor: Any) -> np.ndarray:
    flat: np.ndarray = tensor.detach().float().cpu().numpy().reshape(-1)
    return flat


ValueReaders = dict[tuple[str, tuple[int, ...]], Callable[[], np.ndarray]]


def _recorded_values(recording: Recording) -> dict[tuple[int, int], ValueReaders]:
    """By step and micro of the snapshot; nothing is read before it is asked for."""
    found: dict[tuple[int, int], ValueReaders] = {}
    for record in recording.records("weight_values"):
        fields = record.fields
        piece = str(fields["weight_name"]), tuple(map(int, fields["offset"]))
        own = found.setdefault((record.key.step, int(fields["snapshot"])), {})
        own[piece] = partial(record.array, "values")
    return found


def snapshots_of(recording: Recording) -> Iterator[WeightSnapshot]:
    """Every snapshot, in the order of versions; what the workers of one engine hold is one."""
    values = _recorded_values(recording)
    by_workers: list[Record] = []
    sent: list[tuple[float, WeightSnapshot]] = []
    for record in recording.records("weights"):
        if "engine" in record.fields:
            by_workers.append(record)
            continue
        fields = record.fields
        numbers = dict(fields.get("base_values") or {})
        grids = dict(fields.get("base_grids") or {})
        base = {
            str(name): BaseWeight(int(total), *numbers.get(name, ()))._replace(
                grid=tuple(map(tuple, grids.get(name, ())))
            )
            for name, total in dict(fields.get("base_fingerprints") or {}).items()
        }
        side: SideName = "sent" if fields["side"] == "sent" else "held"
        own = values.get((record.key.step, record.key.micro), {}) | _values(record)
        snapshot = WeightSnapshot(side, record.key.step, int(fields["replica"]), list(_tensors(record)), base, own)
        if side == "sent" and "at" in fields:
            sent.append((float(fields["at"]), snapshot))
        yield snapshot
    yield from _of_engines(by_workers, sent, values)


def _of_engines(
    records: Sequence[Record],
    sent: Sequence[tuple[float, WeightSnapshot]],
    values: Mapping[tuple[int, int], ValueReaders],
) -> Iterator[WeightSnapshot]:
    """Each worker's record belongs to the version that was sent last before it; earlier ones were not sent at all."""
    engines = sorted({str(record.fields["engine"]) for record in records})
    found: dict[tuple[int, int], WeightSnapshot] = {}
    for record in records:
        before = [pair for pair in sent if pair[0] <= float(record.fields["at"])]
        if not before:
            continue
        latest = max(before, key=lambda pair: pair[0])[1]
        key = latest.version, engines.index(str(record.fields["engine"]))
        names = _trainers_names(record.fields["names"], latest)
        own = values.get((record.key.step, record.key.micro), {})
        renamed = {(names.get(name, name), offset): read for (name, offset), read in own.items()}
        tensors = [replace(item, name=names.get(item.name, item.name)) for item in _tensors(record)]
        known = found.get(key) or WeightSnapshot("held", *key, [], {})
        found[key] = replace(known, tensors=[*known.tensors, *tensors], values={**known.values, **renamed})
    yield from (found[key] for key in sorted(found))


def _trainers_names(names: Iterable[str], sent: WeightSnapshot) -> dict[str, str]:
    """An engine's prefixes are not the trainer's; parts of fused tensors have names of their own already."""
    mapped = map_names(names, (item.name for item in sent.tensors))
    return {
        each.engine: each.trainer[0]
        for each in mapped
        if len(each.trainer) == 1 and each.engine and each.rule != "tied-embeddings"
    }


def _values(record: Record) -> ValueReaders:
    """Values in the record itself, of whole tensors."""
    if "values" not in record.fields:
        return {}
    shapes = dict(zip(record.fields["names"], record.fields["shapes"], strict=True))
    rows = zip(map(str, record.fields["value_names"]), map(np.asarray, record.rows("values")), strict=True)
    return {(name, (0,) * len(shapes.get(name, ()))): partial(np.asarray, row) for name, row in rows}


def tensor_names(run: str, engine: str | None) -> tuple[list[str], list[str]]:
    """The trainer's and the engine's names: of two model folders, or of what a recording says was sent and held."""
    if engine is not None:
        return _names_in(Path(run)), _names_in(Path(engine))
    found: dict[SideName, dict[str, None]] = {"sent": {}, "held": {}}
    for snapshot in snapshots_of(open_recording(run)):
        found[snapshot.side].update(dict.fromkeys(item.name for item in snapshot.tensors))
    return list(found["sent"]), list(found["held"])


def _names_in(folder: Path) -> list[str]:
    from safetensors import safe_open

    names: list[str] = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="np") as tensors:
            names += tensors.keys()
    return names


def _tensors(record: Record) -> Iterator[Fingerprint]:
    fields = record.fields
    grids = record.array("fingerprints")
    blocks = record.array("block_values") if "block_values" in fields else None
    numbers = [record.array(name).tolist() for name in ("row_sums", "column_sums", "norms", "value_sums")]
    for number, name in enumerate(fields["names"]):
        box = Box(*(tuple(fields[key][number]) for key in ("shapes", "piece_offsets", "piece_shapes")))
        high, wide = fields["grid_shapes"][number]
        by_row, by_column, norm, total = (column[number] for column in numbers)
        dtype = fields["dtypes"][number]
        own = None if blocks is None else blocks[number, :high, :wide].astype(np.float64)
        yield Fingerprint(name, dtype, box, grids[number, :high, :wide], by_row, by_column, norm, total, own)
