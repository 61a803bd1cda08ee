"""Assembles tensors that a job stores in pieces.

Two declarations are understood. `dims`, as dumpers of tensors write it: "b s[cp:zigzag] h[tp]" names each dimension and
the parallel axes that cut it; "partial" marks addends instead of pieces. And torch's placements: ["Shard(dim=0)"] with
the `global_shape`. Axes that cut nothing hold copies, and each copy is assembled separately.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rldbg.recording.records import EncodedArray, Ragged, Record

_DIMENSION = re.compile(r"\(?[\w*]+\)?(?:\[(?P<axes>[^\]]*)\])?")
_SHARD = re.compile(r"_?(?:Strided)?Shard\((?:dim=)?(?P<dim>-?\d+)")
# Facts about a piece that do not hold for the whole.
_OF_THE_PIECE = frozenset(
    {"shape", "norm", "mean", "std", "hash", "placements", "global_shape", "mesh_shape", "mesh_coordinate", "dims"}
)
_CUTTING_AXES = frozenset({"tp", "pp", "fsdp"})
_TENSORS = ("param", "gradient", "optimizer_state")


class CannotAssemble(Exception):
    """Pieces that do not make up a whole, with the reason."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """One parallel axis: which tensor dimension it cuts, and how."""

    name: str
    dim: int
    is_zigzag: bool = False
    is_partial: bool = False


def is_sharded(record: Record) -> bool:
    """Whether a record holds a piece and declares what it is a piece of."""
    return bool(_axes(record)) or (
        "placements" in record.fields and any(_SHARD.match(str(item)) for item in record.fields["placements"])
    )


def part_held(record: Record) -> tuple[tuple[str, int], ...] | None:
    """Which part of a tensor a record holds: () for all of it. Records of equal parts are replicas of each other.

    None where that is not known: recordings without coordinates, FSDP1, and sums before their reduction.
    """
    if "placements" not in record.fields:
        return None if record.coordinates.keys() & _CUTTING_AXES else ()
    placements = [str(item) for item in record.fields["placements"]]
    if all(item.startswith("Replicate") for item in placements):
        return ()
    coordinate = record.fields.get("mesh_coordinate")
    if coordinate is None or not all(item.startswith("Replicate") or _SHARD.match(item) for item in placements):
        return None
    places = zip(placements, np.asarray(coordinate).tolist(), strict=True)
    return tuple((item, place) for item, place in places if not item.startswith("Replicate"))


def assemble(records: Sequence[Record]) -> list[Record]:
    """The assembled tensors, one per copy; records that are not pieces are returned unchanged."""
    if not any(is_sharded(record) for record in records):
        return list(records)
    axes = _axes(records[0])
    if axes:
        return [_by_axes(copy, axes) for copy in _copies(records, {axis.name for axis in axes})]
    return _by_placements(records)


def _axes(record: Record) -> list[_Axis]:
    declared = record.extra.get("dims", record.fields.get("dims"))
    if not isinstance(declared, str):
        return []
    found: list[_Axis] = []
    for dim, word in enumerate(declared.partition("#")[0].split()):
        match = _DIMENSION.fullmatch(word)
        for part in (match["axes"] or "").split(",") if match else ():
            name, _, qualities = part.strip().partition(":")
            if name in record.coordinates:
                marks = set(qualities.split("+"))
                found.append(_Axis(name, dim, "zigzag" in marks, "partial" in marks))
    return found


def _copies(records: Sequence[Record], cut: set[str]) -> list[list[Record]]:
    """Records grouped by their place on the axes that cut nothing."""
    groups: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        groups[tuple(sorted((k, v) for k, v in record.coordinates.items() if k not in cut))].append(record)
    return list(groups.values())


def _by_axes(pieces: Sequence[Record], axes: Sequence[_Axis]) -> Record:
    arrays = {name: value for name, value in pieces[0].fields.items() if _is_tensor(value)}
    whole = {name: _join([(piece.coordinates, piece.array(name)) for piece in pieces], axes) for name in arrays}
    return _whole_record(pieces, whole)


def _join(pieces: list[tuple[Any, np.ndarray]], axes: Sequence[_Axis]) -> np.ndarray:
    """The innermost axis, named last, is joined first."""
    for axis in reversed(axes):
        groups: dict[tuple[Any, ...], dict[int, np.ndarray]] = defaultdict(dict)
        for place, array in pieces:
            rest = tuple(sorted((key, value) for key, value in place.items() if key != axis.name))
            groups[rest][place[axis.name]] = array
        sizes = {len(group) for group in groups.values()}
        if len(sizes) > 1 or any(set(group) != set(range(len(group))) for group in groups.values()):
            raise CannotAssemble(f"pieces along {axis.name} are missing")
        pieces = [(dict(rest), _along(axis, [group[n] for n in range(len(group))])) for rest, group in groups.items()]
    return pieces[0][1]


def _along(axis: _Axis, parts: list[np.ndarray]) -> np.ndarray:
    if axis.is_partial:
        total: np.ndarray = np.add.reduce(parts)
        return total
    if axis.dim >= parts[0].ndim:
        raise CannotAssemble(f"dimension {axis.dim} is declared, but the tensor has {parts[0].ndim}")
    if axis.is_zigzag:
        halves = [np.split(part, 2, axis=axis.dim) for part in parts]
        parts = [half[0] for half in halves] + [half[1] for half in reversed(halves)]
    return np.concatenate(parts, axis=axis.dim)


def _by_placements(records: Sequence[Record]) -> list[Record]:
    """Pieces in the order of the mesh, whose last dimension varies fastest; in rank order if no coordinates are
    recorded."""
    ordered = sorted(records, key=_mesh_order)
    name = next((name for name in _TENSORS if name in ordered[0].fields), None)
    if name is None:
        raise CannotAssemble("the pieces were recorded without their tensors")
    shape = tuple(int(size) for size in np.asarray(ordered[0].fields["global_shape"]).tolist())
    placements = [_SHARD.match(str(item)) for item in ordered[0].fields["placements"]]
    dims = [int(found["dim"]) % len(shape) for found in placements if found]
    pieces = [record.array(name) for record in ordered]
    copies = sum(piece.size for piece in pieces) // max(1, int(np.prod(shape)))
    if copies > 1 and placements[-1] is None:
        groups = [(ordered[n::copies], pieces[n::copies]) for n in range(copies)]
    else:
        each = len(pieces) // max(copies, 1)
        groups = [(ordered[n * each : (n + 1) * each], pieces[n * each : (n + 1) * each]) for n in range(copies)]
    wholes = []
    for members, parts in groups:
        whole = _concatenate(parts, dims, shape)
        wholes.append(_whole_record(members, {name: whole}))
    if not wholes:
        raise CannotAssemble("some ranks' pieces are missing")
    return wholes


def _mesh_order(record: Record) -> tuple[list[int], int]:
    coordinate = record.fields.get("mesh_coordinate")
    return ([] if coordinate is None else np.asarray(coordinate).tolist()), record.key.rank


def _concatenate(parts: list[np.ndarray], dims: list[int], shape: tuple[int, ...]) -> np.ndarray:
    for dim in reversed(dims):
        joined: list[np.ndarray] = []
        waiting: list[np.ndarray] = []
        for part in parts:
            waiting.append(part)
            if sum(item.shape[dim] for item in waiting) >= shape[dim] or dims.count(dim) > 1:
                joined.append(np.concatenate(waiting, axis=dim))
                waiting = []
        parts = joined + waiting
    whole = np.concatenate(parts, axis=dims[0]) if len(parts) > 1 else parts[0]
    if whole.shape != shape:
        raise CannotAssemble(f"the pieces give shape {list(whole.shape)}, the whole has {list(shape)}")
    return whole


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray | EncodedArray) and not isinstance(value, Ragged)


def _whole_record(pieces: Sequence[Record], whole: dict[str, np.ndarray]) -> Record:
    first = min(pieces, key=lambda record: record.key.rank)
    fields = {name: value for name, value in first.fields.items() if name not in _OF_THE_PIECE}
    return replace(first, fields=fields | whole)
