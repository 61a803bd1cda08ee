"""The sums of fingerprints on a GPU: one kernel for all tensors of a shape, which reads every element once.

torch would widen 16-bit elements to 64 bits in memory before each of its sums, thirty times the traffic. Each program
sums some rows of one block of the grid and stores its own partial sums, so the result does not depend on their order.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

KINDS = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
_ROWS, _COLUMNS, _LOOPS = 64, 128, 4
_ALIGNMENT = 16


def sums_on_gpu(
    addresses: torch.Tensor, numbers: tuple[torch.Tensor, ...], kind: str, size: tuple[int, int], grid: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of contiguous tensors of one size (rows, columns) at the given addresses: [n, blocks + 2] integers, and norm
    and sum of each block, [n, blocks, 2] floats.

    `numbers` are those of the rows, of the columns, and of the columns as rows; `grid` is (blocks high, blocks wide).
    """
    (rows, columns), (high, wide), count = size, grid, len(addresses)
    tiles = math.ceil(rows // high / (_ROWS * _LOOPS))
    integers = torch.empty((count, high, tiles, wide, 3), dtype=torch.int64, device=addresses.device)
    floats = torch.empty((count, high, tiles, wide, 2), dtype=torch.float32, device=addresses.device)
    _partial_sums[(high * tiles * wide, count)](
        addresses,
        *numbers,
        integers,
        floats,
        columns,
        rows // high,
        columns // wide,
        tiles,
        wide,
        kind=kind,
        tile_rows=_ROWS,
        tile_columns=_COLUMNS,
        loops=_LOOPS,
        num_warps=8,
    )
    blocks = integers[..., 0].sum(2).flatten(1)
    values = floats.sum(2, dtype=torch.float64).flatten(1, 2)
    values[..., 0].sqrt_()
    return torch.cat([blocks, integers[..., 1:].sum((1, 2, 3))], 1), values


def is_aligned(tensor: torch.Tensor) -> bool:
    """Whether the kernel can load it in pieces of 16 bytes."""
    return bool(tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0)


@triton.jit  # type: ignore[untyped-decorator]
def _partial_sums(
    addresses: tl.tensor,
    row_numbers: tl.tensor,
    column_numbers: tl.tensor,
    column_as_row: tl.tensor,
    integers: tl.tensor,
    floats: tl.tensor,
    columns: tl.tensor,
    cell_rows: tl.tensor,
    cell_columns: tl.tensor,
    tiles: tl.tensor,
    wide: tl.tensor,
    kind: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
    loops: tl.constexpr,
) -> None:
    place = tl.program_id(0)
    tensor = tl.program_id(1)
    out = tensor.to(tl.int64) * tl.num_programs(0) + place
    block_column = place % wide
    tile = (place // wide) % tiles
    block_row = place // wide // tiles
    address = tl.load(addresses + tensor)
    if kind == "float32":
        base = address.to(tl.pointer_type(tl.int32))
    else:
        base = address.to(tl.pointer_type(tl.int16))
    base = tl.multiple_of(base, 16)
    hashes = tl.zeros((tile_rows,), tl.int64)
    in_rows = tl.zeros((tile_rows,), tl.int64)
    in_columns = tl.zeros((tile_columns,), tl.int64)
    squares = tl.zeros((tile_rows,), tl.float32)
    values = tl.zeros((tile_rows,), tl.float32)
    for start in range(0, cell_columns, tile_columns):
        inside = start + tl.arange(0, tile_columns)
        column = block_column * cell_columns + inside
        known = inside < cell_columns
        number = tl.load(column_numbers + column, mask=known, other=0).to(tl.int32)
        as_row = tl.load(column_as_row + column, mask=known, other=0)
        for loop in range(loops):
            below = (tile * loops + loop) * tile_rows + tl.arange(0, tile_rows)
            row = (block_row * cell_rows + below).to(tl.int64)
            mask = (below < cell_rows)[:, None] & known[None, :]
            bits = tl.load(base + row[:, None] * columns + column[None, :], mask=mask, other=0).to(tl.int32)
            if kind == "bfloat16":
                wanted = (bits << 16).to(tl.float32, bitcast=True)
            elif kind == "float16":
                wanted = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            else:
                wanted = bits.to(tl.float32, bitcast=True)
            by_row = tl.load(row_numbers + row, mask=below < cell_rows, other=0)
            hashes += tl.sum((bits * number[None, :]).to(tl.int64), 1) * by_row
            if kind == "float32":
                in_rows += tl.sum(bits.to(tl.int64), 1) * by_row
                in_columns += tl.sum(bits.to(tl.int64), 0) * as_row
            else:
                in_rows += tl.sum(bits, 1).to(tl.int64) * by_row
                in_columns += tl.sum(bits, 0).to(tl.int64) * as_row
            squares += tl.sum(wanted * wanted, 1)
            values += tl.sum(wanted, 1)
    tl.store(integers + out * 3, tl.sum(hashes, 0))
    tl.store(integers + out * 3 + 1, tl.sum(in_rows, 0))
    tl.store(integers + out * 3 + 2, tl.sum(in_columns, 0))
    tl.store(floats + out * 2, tl.sum(squares, 0))
    tl.store(floats + out * 2 + 1, tl.sum(values, 0))
