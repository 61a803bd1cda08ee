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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from subprocess import SubprocessError
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rldbg.weights.places import Box, Multipliers, edges, rows_and_columns

if TYPE_CHECKING:
    import torch

BLOCKS = 8
# Bounds the memory beside the tensors: four bytes per element of what is computed together. A CPU keeps that in cache.
_ELEMENTS_AT_ONCE = {"cuda": 1 << 27}
_ELEMENTS_ON_CPU = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprint:
    """One piece of a tensor.

    `grid` has the fingerprints of its parts, by equal blocks of rows and columns: they add up to `total`. `by_row` and
    `by_column` ignore where in its row or column an element stands, so they tell how elements were moved. `norm` and
    `sum` are of the values; `values` has both by block, [rows, columns, 2], where they are known.
    """

    name: str
    dtype: str
    box: Box
    grid: np.ndarray
    by_row: int
    by_column: int
    norm: float
    sum: float
    values: np.ndarray | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the answer of a server."""
        numbers = {"by_row": self.by_row, "by_column": self.by_column, "norm": self.norm, "sum": self.sum}
        box = {name: list(extent) for name, extent in self.box._asdict().items()}
        blocks = None if self.values is None else self.values.tolist()
        return {"name": self.name, "dtype": self.dtype, **box, "grid": self.grid.tolist(), "values": blocks, **numbers}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fingerprint:
        box = Box(*(tuple(data[name]) for name in Box._fields))
        grid = np.asarray(data["grid"], dtype=np.int64)
        numbers = (int(data["by_row"]), int(data["by_column"]), float(data["norm"]), float(data["sum"]))
        values = None if data.get("values") is None else np.asarray(data["values"], dtype=np.float64)
        return cls(str(data["name"]), str(data["dtype"]), box, grid, *numbers, values)

    @property
    def total(self) -> int:
        return int(self.grid.sum(dtype=np.int64))

    def part(self, box: Box) -> int | None:
        """The fingerprint of a piece of this whole tensor; None where blocks do not have its edges."""
        chosen = self.blocks(box)
        return None if chosen is None else int(self.grid[chosen].sum(dtype=np.int64))

    def blocks(self, box: Box) -> tuple[slice, slice] | None:
        """The blocks of a piece of this whole tensor; None where they do not have its edges."""
        rows, columns = rows_and_columns(self.box.global_shape)
        found = edges(box)
        if found is None or not self.box.is_whole or box.global_shape != self.box.global_shape or 0 in self.box.shape:
            return None
        (top, bottom), (left, right) = found
        height, width = rows // self.grid.shape[0], columns // self.grid.shape[1]
        if top % height or bottom % height or left % width or right % width:
            return None
        return slice(top // height, bottom // height), slice(left // width, right // width)


def fingerprints(tensors: Mapping[str, torch.Tensor]) -> list[Fingerprint]:
    """Fingerprints of whole tensors, by name."""
    return fingerprints_of_pieces((name, tensor, Box.whole(tensor.shape)) for name, tensor in tensors.items())


def fingerprints_of_pieces(pieces: Iterable[tuple[str, torch.Tensor, Box]]) -> list[Fingerprint]:
    """Fingerprints of pieces, each with its position in the whole tensor."""
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


class FingerprintStream:
    """Fingerprints of tensors that arrive one at a time, and whose memory may be reused for the next: each is summed
    where it lies when it comes, and the sums of all are read at once, so that nothing waits for a GPU in between."""

    def __init__(self) -> None:
        self._largest: dict[torch.device, list[Box]] = {}
        self._tables: dict[torch.device, Multipliers] = {}
        self._pending: dict[torch.device, list[tuple[_Members, Sums]]] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        import torch

        group = _Group(Box.whole(tensor.shape), tensor.dtype, [(name, tensor)])
        table = self._tables.get(tensor.device)
        if table is None or not table.reaches(group.box):
            largest = self._largest.setdefault(tensor.device, [])
            largest.append(group.box)
            table = self._tables[tensor.device] = Multipliers(largest, tensor.device)
        with torch.no_grad():
            (sums,) = _launched([group], table, tensor.device)
        self._pending.setdefault(tensor.device, []).append((group.named, sums))

    def read(self) -> list[Fingerprint]:
        """In order of arrival; for a name that arrived twice, the last one counts."""
        found = {item.name: item for pending in self._pending.values() for item in _read(pending)}
        return list(found.values())


class _Members(NamedTuple):
    """Names of tensors of one dtype at one place of their wholes."""

    box: Box
    dtype: torch.dtype
    names: list[str]


class _Group(NamedTuple):
    box: Box
    dtype: torch.dtype
    members: list[tuple[str, torch.Tensor]]

    @property
    def named(self) -> _Members:
        return _Members(self.box, self.dtype, [name for name, _ in self.members])

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [tensor for _, tensor in self.members]


Sums = tuple["torch.Tensor", "torch.Tensor"]


def _on_device(groups: list[_Group], device: torch.device) -> list[Fingerprint]:
    """Everything is launched before anything is read, and all of it is read at once."""
    sums = _launched(groups, Multipliers([group.box for group in groups], device), device)
    return _read(list(zip((group.named for group in groups), sums, strict=True)))


def _launched(groups: list[_Group], table: Multipliers, device: torch.device) -> list[Sums]:
    known = _by_kernel(groups, table, device) if device.type == "cuda" else {}
    return [
        known[number] if number in known else _by_torch(group, table, device) for number, group in enumerate(groups)
    ]


def _read(pending: list[tuple[_Members, Sums]]) -> list[Fingerprint]:
    """One copy to the host: doubles travel as their bits."""
    import torch

    integers = [sums[0].flatten() for _, sums in pending]
    floats = [sums[1].flatten().double().view(torch.int64) for _, sums in pending]
    numbers = torch.cat([*integers, *floats]).cpu().numpy()
    start = sum(map(len, integers))
    numbers, values = numbers[:start], numbers[start:].view(np.float64)
    found: list[Fingerprint] = []
    for (box, dtype, names), _ in pending:
        high, wide = _grid(*rows_and_columns(box.shape))
        count, cells = len(names), high * wide
        own, numbers = numbers[: count * (cells + 2)].reshape(count, -1), numbers[count * (cells + 2) :]
        blocks, values = values[: 2 * count * cells].reshape(count, high, wide, 2), values[2 * count * cells :]
        kind = str(dtype).removeprefix("torch.")
        grids = own[:, :-2].reshape(count, high, wide)
        norms = np.sqrt((blocks[..., 0] ** 2).sum((1, 2))).tolist()
        totals = blocks[..., 1].sum((1, 2)).tolist()
        by_row, by_column = own[:, -2].tolist(), own[:, -1].tolist()
        columns = (names, grids, by_row, by_column, norms, totals, blocks)
        found += [Fingerprint(name, kind, box, *numbers) for name, *numbers in zip(*columns, strict=True)]
    return found


def _by_torch(group: _Group, table: Multipliers, device: torch.device) -> Sums:
    import torch

    limit = _ELEMENTS_AT_ONCE.get(device.type, _ELEMENTS_ON_CPU)
    size = max(1, limit // max(1, math.prod(group.box.shape)))
    tensors = group.tensors
    parts = [_numbers(tensors[start : start + size], group.box, table) for start in range(0, len(tensors), size)]
    return torch.cat([whole for whole, _ in parts]), torch.cat([values for _, values in parts])


def _by_kernel(groups: list[_Group], table: Multipliers, device: torch.device) -> dict[int, Sums]:
    """Sums of the groups that the GPU kernel can read, by number; torch computes the same for the others."""
    import torch

    try:
        from rldbg.weights.gpu_kernel import KINDS, is_aligned, sums_on_gpu

        fit = {
            number: group
            for number, group in enumerate(groups)
            if group.dtype in KINDS and 0 not in group.box.shape and all(map(is_aligned, group.tensors))
        }
        places = [tensor.data_ptr() for group in fit.values() for tensor in group.tensors]
        addresses = (
            torch.full((1,), places[0], dtype=torch.int64, device=device)  # Nothing is copied, so nothing waits.
            if len(places) == 1
            else torch.tensor(places, dtype=torch.int64, device=device)
        )
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


def _numbers(tensors: list[torch.Tensor], box: Box, table: Multipliers) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, blocks + 2] integers and [n, blocks, 2] floats: norm and sum of each block."""
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
    blocks = values.reshape(len(tensors), high, rows // high, wide, columns // wide)
    norms = torch.linalg.vector_norm(blocks, dim=(2, 4), dtype=torch.float32)
    return whole, torch.stack([norms, blocks.sum((2, 4), dtype=torch.float32)], -1).flatten(1, 2)


def _grid(rows: int, columns: int) -> tuple[int, int]:
    return math.gcd(rows, BLOCKS), math.gcd(columns, BLOCKS)


def _integer(dtype: torch.dtype) -> torch.dtype:
    import torch

    return {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
