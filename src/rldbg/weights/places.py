"""Places in a tensor: the box that a piece fills, and the numbers that rows and columns give to element hashes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

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


def rows_and_columns(shape: Sequence[int]) -> tuple[int, int]:
    return (math.prod(shape[:-1]), int(shape[-1])) if shape else (1, 1)


def edges(box: Box) -> tuple[tuple[int, int], tuple[int, int]] | None:
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


class Multipliers:
    """The numbers of all rows and columns, made once: dozens of small kernels per tensor would cost more than it."""

    def __init__(self, boxes: Sequence[Box], device: torch.device) -> None:
        import torch

        sizes = [rows_and_columns(box.global_shape) for box in boxes]
        columns = max((size[1] for size in sizes), default=0)
        longest = max([columns, *(size[0] for size in sizes)])
        self._rows = _mixed(torch.arange(longest, device=device), _ROW_SALT)
        self._columns = _mixed(torch.arange(columns, device=device), _COLUMN_SALT)

    def reaches(self, box: Box) -> bool:
        rows, columns = rows_and_columns(box.global_shape)
        return max(rows, columns) <= len(self._rows) and columns <= len(self._columns)

    def of(self, box: Box) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The numbers of the piece's rows and columns, by their positions in the whole tensor. Columns also have the
        numbers of rows, so that a transposed tensor has its sums by row and by column exchanged."""
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
