"""What numpy puts into pickles, rebuilt from checked parts: numpy's own __setstate__ never sees unchecked data.

Pickles build an array in two steps, an empty shell and then its state, so a shell stands for the array until
`settled` puts the array itself in its place.
"""

import math
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed

_MAX_DIMENSIONS = 32
_UNITS = frozenset(["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"])
_PLAIN_HINT = "record plain arrays of numbers; tables of several columns are not read"
_PLAIN_KINDS = frozenset("biufcSUMmO?")


class DtypeShell:
    """numpy.dtype as a pickle describes it: a name, then a state that holds the byte order."""

    __slots__ = ("dtype",)

    def __init__(self, name: Any, align: Any = False, copy: Any = True) -> None:
        if not isinstance(name, str) or len(name) > 16:
            raise Malformed(f"numpy dtype {name!r:.40} is not supported", _PLAIN_HINT)
        self.dtype = np.dtype(name)
        if self.dtype.kind not in _PLAIN_KINDS or self.dtype.fields is not None:
            raise Malformed(f"numpy dtype {name!r:.40} is not supported", _PLAIN_HINT)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 8 or state[1] not in ("<", ">", "|", "="):
            raise Malformed("a numpy dtype has an unknown state")
        if any(part is not None for part in state[2:5]):
            raise Malformed("structured numpy dtypes are not supported", _PLAIN_HINT)
        if self.dtype.kind in "mM" and len(state) > 8:
            self.dtype = np.dtype(f"{self.dtype.kind}8[{_unit(state[8])}]")
        if state[1] in "<>":
            self.dtype = self.dtype.newbyteorder(state[1])


def _unit(metadata: Any) -> str:
    """The unit of a date or duration, as numpy files it: (extra, (unit, how many, 1, 1))."""
    parts = metadata[1] if isinstance(metadata, tuple) and len(metadata) == 2 else ()
    if not isinstance(parts, tuple) or len(parts) < 2 or type(parts[1]) is not int or not 0 < parts[1] < 1 << 31:
        raise Malformed("a numpy date has no unit")
    name = parts[0].decode("latin1") if isinstance(parts[0], bytes) else parts[0]
    if name not in _UNITS:
        raise Malformed(f"a numpy date has the unknown unit {name!r:.20}")
    return f"{parts[1]}{name}"


class ArrayShell:
    """An ndarray as a pickle describes it; built when it is settled, where what is built is counted."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise Malformed("a numpy array has an unknown state")
        _, shape, dtype, is_fortran, raw = state
        self._parts = (raw, dtype, shape, "F" if is_fortran is True else "C")

    def build(self) -> np.ndarray:
        if not self._parts:
            raise Malformed("a numpy array without its contents")
        return build_array(*self._parts)


def build_array(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
    """The array that these bytes (or, for objects, this list) are; native byte order, read-only when zero copy."""
    if not isinstance(dtype, DtypeShell) or order not in ("C", "F"):
        raise Malformed("a numpy array has no proper dtype")
    dims = checked_shape(shape)
    count = math.prod(dims)
    if dtype.dtype.kind == "O":
        raw = raw.tolist() if isinstance(raw, np.ndarray) else raw
        if not isinstance(raw, list) or len(raw) != count:
            raise Malformed("a numpy object array does not hold as many objects as its shape says")
        objects = np.empty(count, dtype=object)
        objects[:] = raw
        return objects.reshape(dims, order=order)
    if isinstance(raw, str):  # protocol 2 pickles of Python 2
        raw = raw.encode("latin1")
    if not isinstance(raw, bytes | bytearray) or len(raw) != count * dtype.dtype.itemsize:
        raise Malformed("a numpy array does not hold as many bytes as its shape says")
    if count == 0:
        return np.empty(dims, dtype=dtype.dtype)
    flat = np.frombuffer(raw, dtype=dtype.dtype)
    refuse_odd_bools(flat)
    return flat.astype(flat.dtype.newbyteorder("="), copy=False).reshape(dims, order=order)


def build_scalar(dtype: Any, raw: Any = None) -> Any:
    """numpy.core.multiarray.scalar: one value, kept as the numpy scalar it was."""
    if isinstance(dtype, DtypeShell) and dtype.dtype.kind == "O":
        return raw
    return build_array(raw, dtype, ())[()]


def rebuild_shell(*_: Any) -> ArrayShell:
    """numpy.core.multiarray._reconstruct(ndarray, (0,), b"b"): always an empty array whose state follows."""
    return ArrayShell()


def from_buffer(raw: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> ArrayShell:
    return ArrayShell(raw, dtype, shape, order)


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape of at most 32 sizes, none negative."""
    if not isinstance(shape, tuple | list) or len(shape) > _MAX_DIMENSIONS:
        raise Malformed(f"{shape!r:.60} is not a shape")
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in shape):
        raise Malformed(f"{shape!r:.60} is not a shape")
    return tuple(shape)


def refuse_odd_bools(values: np.ndarray) -> None:
    """Bytes other than 0 and 1 are not bools; numpy would answer differently for each way of asking."""
    if values.dtype == np.bool_ and values.size and int(values.view(np.uint8).max()) > 1:
        raise Malformed("a bool array holds bytes other than 0 and 1")
