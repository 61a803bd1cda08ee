"""Fingerprints of tensors: sums of element hashes, exact under any resharding, at memory speed on a GPU.

An element's hash is its bits times a number that its column gives (modulo 2^32), times a number that its row gives
(modulo 2^64). Rows are all axes but the last. Sums do not depend on order, so the fingerprints of the pieces of a
tensor add up to that of the whole, wherever it was cut, and an all-zero tensor has fingerprint 0. Tensors of one shape
are computed together: a model has hundreds of tensors, and launching a kernel costs more than reading one. The kernel
for GPUs is in `gpu_kernel`; what is here computes the same everywhere.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from subprocess import SubprocessError
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch

BLOCKS = 8
# Bounds the memory beside the tensors: four bytes per element of what is computed together. A CPU keeps that in cache.
_ELEMENTS_AT_ONCE = {"cuda": 1 << 27}
_ELEMENTS_ON_CPU = 1 << 20
_log = logging.getLogger(__name__)
_ROW_SALT, _COLUMN_SALT = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03


class Box(NamedTuple):
    """The place of a piece in its tensor."""

    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        return cls(tuple(shape), (0,) * len(shape), tuple(shape))

    @property
    def is_whole(self) -> bool:
        return self.shape == self.global_shape


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprint:
    """One piece of a tensor.

    `grid` has the fingerprints of its parts, by equal blocks of rows and columns: they add up to `total`. `by_row` and
    `by_column` ignore where in its row or column an element stands, so they tell how elements were moved. `norm` and
    `sum` are of the values.
    """

    name: str
    dtype: str
    box: Box
    grid: np.ndarray
    by_row: int
    by_column: int
    norm: float
    sum: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON: what a server answers."""
        numbers = {"by_row": self.by_row, "by_column": self.by_column, "norm": self.norm, "sum": self.sum}
        box = {name: list(extent) for name, extent in self.box._asdict().items()}
        return {"name": self.name, "dtype": self.dtype, **box, "grid": self.grid.tolist(), **numbers}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fingerprint:
        box = Box(*(tuple(data[name]) for name in Box._fields))
        grid = np.asarray(data["grid"], dtype=np.int64)
        numbers = (int(data["by_row"]), int(data["by_column"]), float(data["norm"]), float(data["sum"]))
        return cls(str(data["name"]), str(data["dtype"]), box, grid, *numbers)

    @property
    def total(self) -> int:
        return int(self.grid.sum(dtype=np.int64))

    def part(self, box: Box) -> int | None:
        """The fingerprint of a piece of this whole tensor; None where blocks do not have its edges."""
        rows, columns = rows_and_columns(self.box.global_shape)
        edges = _edges(box, rows, columns)
        if edges is None or not self.box.is_whole:
            return None
        (top, bottom), (left, right) = edges
        height, width = rows // self.grid.shape[0], columns // self.grid.shape[1]
        if top % height or bottom % height or left % width or right % width:
            return None
        chosen = self.grid[top // height : bottom // height, left // width : right // width]
        return int(chosen.sum(dtype=np.int64))


def fingerprints(tensors: Mapping[str, torch.Tensor]) -> list[Fingerprint]:
    """Of whole tensors, by name."""
    return fingerprints_of_pieces((name, tensor, Box.whole(tensor.shape)) for name, tensor in tensors.items())


def fingerprints_of_pieces(pieces: Iterable[tuple[str, torch.Tensor, Box]]) -> list[Fingerprint]:
    """Of pieces, each with its place in the tensor of its name."""
    import torch

    alike: dict[tuple[Any, ...], list[tuple[str, torch.Tensor]]] = defaultdict(list)
    for name, tensor, box in pieces:
        if tensor.shape != box.shape:
            raise ValueError(f"{name}: a piece of shape {tuple(tensor.shape)} cannot fill {box.shape}")
        alike[box, tensor.dtype, tensor.device].append((name, tensor))
    found: list[Fingerprint] = []
    with torch.no_grad():
        for device in {key[2]: None for key in alike}:
            groups = [_Group(box, dtype, own) for (box, dtype, at), own in alike.items() if at == device]
            found += _on_device(groups, device)
    return found


class _Group(NamedTuple):
    """Tensors of one dtype at one place of their wholes."""

    box: Box
    dtype: torch.dtype
    members: list[tuple[str, torch.Tensor]]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [tensor for _, tensor in self.members]


Sums = tuple["torch.Tensor", "torch.Tensor"]


def _on_device(groups: list[_Group], device: torch.device) -> list[Fingerprint]:
    """Everything is launched before anything is read, and all of it is read at once."""
    import torch

    table = _Multipliers([group.box for group in groups], device)
    sums = _by_kernel(groups, table, device) if device.type == "cuda" else {}
    for number, group in enumerate(groups):
        if number not in sums:
            sums[number] = _by_torch(group, table, device)
    integers = torch.cat([sums[number][0].flatten() for number in range(len(groups))]).cpu().numpy()
    floats = iter(torch.cat([sums[number][1].flatten() for number in range(len(groups))]).tolist())
    found: list[Fingerprint] = []
    for group in groups:
        rows, columns = rows_and_columns(group.box.shape)
        high, wide = _grid(rows, columns)
        dtype, width, count = str(group.dtype).removeprefix("torch."), high * wide + 2, len(group.members)
        own, integers = integers[: count * width].reshape(count, width), integers[count * width :]
        grids, ends = own[:, :-2].reshape(count, high, wide), own[:, -2:].tolist()
        for (name, _), grid, (by_row, by_column) in zip(group.members, grids, ends, strict=True):
            found.append(Fingerprint(name, dtype, group.box, grid, by_row, by_column, next(floats), next(floats)))
    return found


def _by_torch(group: _Group, table: _Multipliers, device: torch.device) -> Sums:
    import torch

    limit = _ELEMENTS_AT_ONCE.get(device.type, _ELEMENTS_ON_CPU)
    size = max(1, limit // max(1, math.prod(group.box.shape)))
    tensors = group.tensors
    parts = [_numbers(tensors[start : start + size], group.box, table) for start in range(0, len(tensors), size)]
    return torch.cat([whole for whole, _ in parts]), torch.cat([values for _, values in parts])


def _by_kernel(groups: list[_Group], table: _Multipliers, device: torch.device) -> dict[int, Sums]:
    """Of the groups that the kernel for GPUs can read, by number; torch computes the same for the others."""
    import torch

    try:
        from rldbg.weights.gpu_kernel import KINDS, is_aligned, sums_on_gpu

        fit = {
            number: group
            for number, group in enumerate(groups)
            if group.dtype in KINDS and 0 not in group.box.shape and all(map(is_aligned, group.tensors))
        }
        places = [tensor.data_ptr() for group in fit.values() for tensor in group.tensors]
        addresses = torch.tensor(places, dtype=torch.int64, device=device)
        found = {}
        for number, group in fit.items():
            own, addresses = addresses[: len(group.members)], addresses[len(group.members) :]
            size = rows_and_columns(group.box.shape)
            with torch.cuda.device(device):
                found[number] = sums_on_gpu(own, table.of(group.box), KINDS[group.dtype], size, _grid(*size))
        return found
    except (ImportError, OSError, RuntimeError, SubprocessError) as error:
        # Triton needs a C compiler where it runs first.
        _warn_once(f"fingerprints are computed by torch, several times slower than by the kernel: {error}")
        return {}


@cache
def _warn_once(text: str) -> None:
    _log.warning(text)


def rows_and_columns(shape: Sequence[int]) -> tuple[int, int]:
    return (math.prod(shape[:-1]), int(shape[-1])) if shape else (1, 1)


def _numbers(tensors: list[torch.Tensor], box: Box, table: _Multipliers) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, grid rows * grid columns + 2] integers and [n, 2] floats."""
    import torch

    rows, columns = rows_and_columns(box.shape)
    flat = [tensor.reshape(1, rows, columns) for tensor in tensors]
    stacked = flat[0].contiguous() if len(flat) == 1 else torch.cat(flat)
    bits = stacked.view(_integer(stacked.dtype))
    by_row, by_column, column_as_row = table.of(box)
    high, wide = _grid(rows, columns)
    narrow = by_column if bits.dtype == torch.int64 else by_column.to(torch.int32)
    hashed = (bits * narrow).reshape(len(tensors), rows, wide, columns // wide).sum(-1, dtype=torch.int64)
    grid = (hashed * by_row[:, None]).reshape(len(tensors), high, rows // high, wide).sum(2)
    in_rows = (bits.sum(2, dtype=torch.int64) * by_row).sum(1)
    in_columns = (bits.sum(1, dtype=torch.int64) * column_as_row).sum(1)
    whole = torch.cat([grid.flatten(1), in_rows[:, None], in_columns[:, None]], 1)
    values = stacked if stacked.is_floating_point() and stacked.dtype.itemsize in (2, 4) else stacked.float()
    norm = torch.linalg.vector_norm(values, dim=(1, 2), dtype=torch.float32)
    return whole, torch.stack([norm, values.sum((1, 2), dtype=torch.float32)], 1)


def _grid(rows: int, columns: int) -> tuple[int, int]:
    return math.gcd(rows, BLOCKS), math.gcd(columns, BLOCKS)


def _integer(dtype: torch.dtype) -> torch.dtype:
    import torch

    return {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]


class _Multipliers:
    """The numbers of all rows and columns, made once: dozens of small kernels per tensor would cost more than it."""

    def __init__(self, boxes: Sequence[Box], device: torch.device) -> None:
        import torch

        sizes = [rows_and_columns(box.global_shape) for box in boxes]
        columns = max((size[1] for size in sizes), default=0)
        longest = max([columns, *(size[0] for size in sizes)])
        self._rows = _mixed(torch.arange(longest, device=device), _ROW_SALT)
        self._columns = _mixed(torch.arange(columns, device=device), _COLUMN_SALT)

    def of(self, box: Box) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Those of the piece's rows and columns, by their places in the whole tensor. Columns also have the numbers of
        rows, so that a transposed tensor has its sums by row and by column exchanged."""
        own = slice(box.offset[-1], box.offset[-1] + box.shape[-1]) if box.shape else slice(1)
        if box.is_whole:
            rows = self._rows[: rows_and_columns(box.shape)[0]]
        else:
            rows = self._rows[self._places(box)]
        return rows, self._columns[own], self._rows[own]

    def _places(self, box: Box) -> torch.Tensor:
        """The numbers of a piece's rows in the whole tensor."""
        import torch

        place = torch.zeros((), dtype=torch.int64, device=self._rows.device)
        for size, start, extent in zip(box.shape[:-1], box.offset[:-1], box.global_shape[:-1], strict=True):
            place = place[..., None] * extent + torch.arange(start, start + size, device=place.device)
        return place.reshape(-1)


def _mixed(places: torch.Tensor, salt: int) -> torch.Tensor:
    """An odd 64-bit number per place that looks random: additions, shifts and products as in SplitMix64."""
    mixed = places.long() * _signed(salt) + _signed(0x2545F4914F6CDD1D)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ ((mixed >> shift) & ((1 << (64 - shift)) - 1))) * _signed(factor)
    return (mixed ^ ((mixed >> 31) & ((1 << 33) - 1))) | 1


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _edges(box: Box, rows: int, columns: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The rows and columns of a piece, if its rows follow each other in the whole tensor."""
    if not box.shape:
        return (0, 1), (0, 1)
    left = box.offset[-1]
    first, count = 0, 1
    for size, start, extent in zip(box.shape[:-1], box.offset[:-1], box.global_shape[:-1], strict=True):
        if count > 1 and size != extent:
            return None
        first, count = first * extent + start, count * size
    return (first, first + count), (left, left + box.shape[-1])
