"""How coarsely both sides compute, read from their gradients and parameters.

A pass that rounds every product to bfloat16 gives what exact arithmetic would give with weights that are each off by a
unit roundoff: fl(W x) = (W + E) x with |E| <= u |W|. So the rounding of a pass counts as a distance u |W| of the
parameters, in the units in which drift is measured. The finer side decides: a side that alone is coarse gains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rldbg.analysis.flat_arrays import give_back
from rldbg.analysis.noise.tensors import GRADIENT, PARAMETER, TensorHistory
from rldbg.analysis.tolerances import COARSE, roundoff_of
from rldbg.analysis.whole import Block
from rldbg.recording import Record

_BFLOAT16 = "bfloat16"
# Sums of bfloat16 products leave the last bits of a float32 empty, unless their terms differ by many powers of two.
# Those of float32 products leave eight bits empty in one element of 256, or in a few where terms cancel.
_EMPTY_BITS = np.uint32(0xFF)
_SHARE = 0.1
_FEWEST_ELEMENTS = 64
# As many tensors, of all layers, are looked at in as many updates: reading all gradients may take minutes.
_TENSORS, _UPDATES = 32, 4


def computing_roundoff(histories: Sequence[TensorHistory]) -> float:
    """The unit roundoff of both sides' passes where it is coarser than any float32 computation; else 0."""
    found = min((_of_side(histories, number) for number in (0, 1)), default=0.0)
    return found if found > COARSE else 0.0


def _of_side(histories: Sequence[TensorHistory], number: int) -> float:
    some = histories[:: max(1, len(histories) // _TENSORS)]
    tensors = [[_record(block, number) for block in history.gradients.values()] for history in some]
    recorded = [roundoff_of(records[0].dtype(GRADIENT)) for records in tensors if records]
    if recorded and min(recorded) > COARSE:
        return min(recorded)
    told = [item for records in tensors if (item := _ever_coarse(records)) is not None]
    return roundoff_of(_BFLOAT16) if told and 2 * sum(told) > len(told) else 0.0


def _ever_coarse(records: Sequence[Record]) -> bool | None:
    seen = []
    for record in records[:: max(1, len(records) // _UPDATES)]:
        if record.dtype(GRADIENT) == "float32":
            seen.append(is_coarse(np.asarray(record.array(GRADIENT), np.float32)))
            give_back([record.fields[GRADIENT]])
    told = [item for item in seen if item is not None]
    return any(told) if told else None


def is_coarse(values: np.ndarray) -> bool | None:
    """Whether most elements of a float32 tensor are sums of coarser numbers; None where they are too few to tell."""
    bits = values[np.isfinite(values) & (values != 0)].view(np.uint32)
    return None if bits.size < _FEWEST_ELEMENTS else bool(np.mean(bits & _EMPTY_BITS == 0) > _SHARE)


def parameter_norm(histories: Sequence[TensorHistory]) -> float:
    """The Euclidean norm of all parameters as first recorded, on the side where it is smaller."""
    squares = np.zeros(2)
    for history in histories:
        for block in list(history.parameters.values())[:1]:
            for number in (0, 1):
                values = _record(block, number).array(PARAMETER).astype(np.float64)
                squares[number] += np.square(values[np.isfinite(values)]).sum()
            give_back([record.fields[PARAMETER] for record in (block.a, block.b)])
    return float(np.sqrt(squares.min()))


def _record(block: Block, number: int) -> Record:
    return (block.a, block.b)[number]
