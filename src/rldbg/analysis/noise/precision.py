"""How coarsely both sides compute, read from their gradients and parameters.

A pass that rounds every product to bfloat16 or float16 gives what exact arithmetic would give with weights that are
each off by a unit roundoff: fl(W x) = (W + E) x with |E| <= u |W|. So the rounding of a pass counts as a distance
u |W| of the parameters, in the units in which drift is measured. The finer side decides: a side that alone is coarse
gains nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from rldbg.analysis.flat_arrays import give_back
from rldbg.analysis.noise.tensors import GRADIENT, PARAMETER, TensorHistory
from rldbg.analysis.tolerances import COARSE, Update, roundoff_of
from rldbg.analysis.whole import Block
from rldbg.recording import Record

# Significant bits of the dtypes that mixed precision computes in; each element of a gradient is a sum of such numbers.
_BFLOAT16, _FLOAT16 = ("bfloat16", 8), ("float16", 11)
# Sums of bfloat16 products leave the last bits of a float32 empty, unless their terms differ by many powers of two.
# Those of float32 products leave eight bits empty in one element of 256, or in a few where terms cancel.
_EMPTY_BITS = np.uint32(0xFF)
_SHARE = 0.1
# A float16 with random bits fits into eight of its eleven in one case of eight. Sums of bfloat16 that fit into eleven
# bits nearly always fit into eight about as often as not.
_FIT, _FIT_SHORTER = 0.9, 0.25
_FEWEST_ELEMENTS = 64
_FEWEST_AT_QUANTUM = 30
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
    # The loss may be scaled differently in every update, so each of them has a quantum of its own.
    quanta: dict[Update, Counter[int]] = defaultdict(Counter)
    told = [item for records in tensors if (item := _coarsest(records, quanta)) is not None]
    coarse = [item for item in told if item]
    if 2 * len(coarse) <= len(told):
        return 0.0
    # What is not clearly float16 may be bfloat16, which allows more.
    is_half = 2 * coarse.count(_FLOAT16[0]) > len(coarse) or 2 * sum(map(has_quantum, quanta.values())) > len(quanta)
    return roundoff_of(_FLOAT16[0] if is_half else _BFLOAT16[0])


def _coarsest(records: Sequence[Record], quanta: dict[Update, Counter[int]]) -> str | None:
    """The coarse dtype of most updates; "" if there is none, None if it cannot be determined."""
    seen = []
    for record in records[:: max(1, len(records) // _UPDATES)]:
        if record.dtype(GRADIENT) == "float32":
            values = np.asarray(record.array(GRADIENT), np.float32)
            seen.append(coarse_dtype(values))
            quanta[record.key.step, record.key.epoch, record.key.mini_batch].update(lowest_bits(values).tolist())
            give_back([record.fields[GRADIENT]])
    told = [item for item in seen if item is not None]
    return max(filter(None, told), key=told.count, default="") if told else None


def lowest_bits(values: np.ndarray) -> np.ndarray:
    """The exponent of the last bit that is set, for each element of a float32 tensor that has one."""
    kept = values[np.isfinite(values) & (values != 0)]
    fraction, exponent = np.frexp(kept)
    whole = (np.abs(fraction) * 2.0**24).astype(np.int64)
    return np.asarray(exponent - 24 + np.log2(whole & -whole).astype(np.int64))


def has_quantum(lowest: Counter[int]) -> bool:
    """Whether all elements are multiples of one number, as sums of any number of float16 are.

    Below float16's smallest normal number its spacing no longer shrinks. The last bits of many elements then lie at
    that spacing and none below it; those of numbers without a smallest one become fewer by half with each power of two.
    """
    least = min(lowest, default=0)
    return lowest[least] >= _FEWEST_AT_QUANTUM and 2 * lowest[least] >= lowest[least + 1]


def coarse_dtype(values: np.ndarray) -> str | None:
    """The dtype of the numbers that most elements of a float32 tensor are sums of, "" for float32; None for too few."""
    bits = values[np.isfinite(values) & (values != 0)].view(np.uint32)
    if bits.size < _FEWEST_ELEMENTS:
        return None
    if np.mean(bits & _EMPTY_BITS == 0) <= _SHARE:
        return ""
    shorter, longer = (np.mean(bits & np.uint32((1 << 24 - count) - 1) == 0) for _, count in (_BFLOAT16, _FLOAT16))
    return _FLOAT16[0] if longer >= _FIT and shorter <= _FIT_SHORTER else _BFLOAT16[0]


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
