"""The fingerprints of all tensors at one moment, as records of the kind `weights`.

One record per snapshot: the step is the version, micro 0 is what the trainer sent, and micro n + 1 is what replica n
of the engine holds. A worker of an engine that is not told versions writes a record of its own: `engine` names the
replica, and `at` says which version was sent last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rldbg.recording import Record, Recording
from rldbg.recording import open as open_recording
from rldbg.weights.fingerprint import BLOCKS, Box, Fingerprint
from rldbg.weights.naming import map_names

SideName = Literal["sent", "held"]


class BaseWeight(NamedTuple):
    """A tensor without its LoRA delta: fingerprint, norm and sum, and the norm of the delta (NaN: not recorded)."""

    total: int
    norm: float = math.nan
    sum: float = math.nan
    delta_norm: float = math.nan

    @classmethod
    def of(cls, base: Fingerprint, merged: Any, weight: Any) -> BaseWeight:
        """`merged` and `weight` are the tensors with and without the delta."""
        return cls(base.total, base.norm, base.sum, float((merged.double() - weight.double()).norm()))


@dataclass(frozen=True, slots=True)
class WeightSnapshot:
    """What the trainer sent as a version, or what a replica holds after it. A name may have several pieces."""

    side: SideName
    version: int
    replica: int
    tensors: Sequence[Fingerprint]
    base: Mapping[str, BaseWeight]
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def micro(self) -> int:
        return 0 if self.side == "sent" else self.replica + 1

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
    for number, item in enumerate(tensors):
        grids[number, : item.grid.shape[0], : item.grid.shape[1]] = item.grid
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
        "base_fingerprints": {name: item.total for name, item in (base or {}).items()},
        "base_values": {name: list(item[1:]) for name, item in (base or {}).items()},
        **({"value_names": list(values), "values": [_flat(tensor) for tensor in values.values()]} if values else {}),
    }


def _flat(tensor: Any) -> np.ndarray:
    flat: np.ndarray = tensor.detach().float().cpu().numpy().reshape(-1)
    return flat


def snapshots_of(recording: Recording) -> Iterator[WeightSnapshot]:
    """Every snapshot, in the order of versions; what the workers of one engine hold is one."""
    by_workers: list[Record] = []
    sent: list[tuple[float, WeightSnapshot]] = []
    for record in recording.records("weights"):
        if "engine" in record.fields:
            by_workers.append(record)
            continue
        fields = record.fields
        numbers = dict(fields.get("base_values") or {})
        base = {
            str(name): BaseWeight(int(total), *numbers.get(name, ()))
            for name, total in dict(fields.get("base_fingerprints") or {}).items()
        }
        side: SideName = "sent" if fields["side"] == "sent" else "held"
        snapshot = WeightSnapshot(
            side, record.key.step, int(fields["replica"]), list(_tensors(record)), base, _values(record)
        )
        if side == "sent" and "at" in fields:
            sent.append((float(fields["at"]), snapshot))
        yield snapshot
    yield from _of_engines(by_workers, sent)


def _of_engines(records: Sequence[Record], sent: Sequence[tuple[float, WeightSnapshot]]) -> Iterator[WeightSnapshot]:
    """Each worker's record belongs to the version that was sent last before it; earlier ones were not sent at all."""
    engines = sorted({str(record.fields["engine"]) for record in records})
    found: dict[tuple[int, int], list[Fingerprint]] = {}
    for record in records:
        before = [pair for pair in sent if pair[0] <= float(record.fields["at"])]
        if before:
            latest = max(before, key=lambda pair: pair[0])[1]
            tensors = _by_trainers_names(list(_tensors(record)), latest)
            found.setdefault((latest.version, engines.index(str(record.fields["engine"]))), []).extend(tensors)
    for (version, replica), tensors in sorted(found.items()):
        yield WeightSnapshot("held", version, replica, tensors, {})


def _by_trainers_names(tensors: Sequence[Fingerprint], sent: WeightSnapshot) -> list[Fingerprint]:
    """An engine's prefixes are not the trainer's; parts of fused tensors have names of their own already."""
    mapped = map_names((item.name for item in tensors), (item.name for item in sent.tensors))
    names = {each.engine: each.trainer[0] for each in mapped if len(each.trainer) == 1 and each.engine}
    return [replace(item, name=names.get(item.name, item.name)) for item in tensors]


def _values(record: Record) -> dict[str, np.ndarray]:
    if "values" not in record.fields:
        return {}
    return dict(zip(map(str, record.fields["value_names"]), map(np.asarray, record.rows("values")), strict=True))


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
    numbers = [record.array(name).tolist() for name in ("row_sums", "column_sums", "norms", "value_sums")]
    for number, name in enumerate(fields["names"]):
        box = Box(*(tuple(fields[key][number]) for key in ("shapes", "piece_offsets", "piece_shapes")))
        high, wide = fields["grid_shapes"][number]
        by_row, by_column, norm, total = (column[number] for column in numbers)
        dtype = fields["dtypes"][number]
        yield Fingerprint(name, dtype, box, grids[number, :high, :wide], by_row, by_column, norm, total)
