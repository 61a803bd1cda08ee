"""Numbers, text and JSON-like data, compared leaf by leaf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rldbg.analysis.measure import measure
from rldbg.analysis.measured import Measured
from rldbg.analysis.tolerances import Tolerance
from rldbg.recording import EncodedArray, Ragged

ABSENT = "(absent)"
# Names of samples, or copies of other fields: not compared.
IDENTITY_KEYS = frozenset({"group_id", "run_id", "uid", "task_id", "_rldbg"})
# Durations are not a property of the computation.
_TIMES = re.compile(r"(^|[./_])(time|timing|perf|throughput|seconds|timestamp)([./_]|$)|(_s|_ms|_secs|_per_second)$")


def is_array(value: Any) -> bool:
    return isinstance(value, Ragged | EncodedArray | np.ndarray)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def is_time(path: str) -> bool:
    """Whether a value measures time or speed, by its name."""
    return bool(_TIMES.search(path.lower()))


def leaf_pairs(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every leaf of either side with its path; what only one side has is paired with ABSENT."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            if key not in IDENTITY_KEYS:
                yield from leaf_pairs(a.get(key, ABSENT), b.get(key, ABSENT), f"{path}.{key}" if path else str(key))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        for position in range(max(len(a), len(b))):
            left = a[position] if position < len(a) else ABSENT
            right = b[position] if position < len(b) else ABSENT
            yield from leaf_pairs(left, right, f"{path}[{position}]")
    else:
        yield path, a, b


def compare_leaf(a: Any, b: Any, tolerance: Tolerance) -> Measured:
    if is_number(a) and is_number(b):
        if a == b:
            return Measured(compared=1, dot_ab=a * b, dot_aa=a * a, dot_bb=b * b)
        return measure(np.asarray([a], dtype=np.float64), np.asarray([b], dtype=np.float64), tolerance)
    if is_array(a) or is_array(b):
        return _compare_arrays(_plain(a), _plain(b), tolerance)
    return Measured(compared=1, beyond=int(_text(a) != _text(b)))


def _compare_arrays(a: np.ndarray, b: np.ndarray, tolerance: Tolerance) -> Measured:
    if a.shape == b.shape and a.dtype.kind in "fiub" and b.dtype.kind in "fiub":
        return measure(a, b, tolerance)
    return Measured(compared=1, beyond=int(a.shape != b.shape or not np.array_equal(a, b)))


def _plain(value: Any) -> np.ndarray:
    return np.asarray(value.values if isinstance(value, Ragged) else value)


def _text(value: Any) -> Any:
    """`torch.float32` and `float32` are the same dtype."""
    return value.removeprefix("torch.") if isinstance(value, str) else value
