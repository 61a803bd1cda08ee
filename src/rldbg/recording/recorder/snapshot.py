"""What the training thread pays for: a copy of everything it handed over, so that it may overwrite its own at once."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from rldbg.recording.kinds import Shape
from rldbg.recording.recorder.device import Devices, PendingCopy, Transfer
from rldbg.recording.recorder.later import Later
from rldbg.recording.recorder.lists import array_from_list, ragged_from_lists
from rldbg.recording.recorder.memory import HeapMemory, SnapshotMemory
from rldbg.recording.recorder.schema import shape_of
from rldbg.recording.recorder.small_tensors import SmallTensors
from rldbg.recording.recorder.tensors import array_of, is_plain, is_tensor, plain_tensor, torch_module
from rldbg.recording.records import EncodedArray, Ragged

# Bookkeeping and data that is not an array are charged to the buffer as well: many small records are bounded, too.
_LEAF_BYTES = 64
_RECORD_LEAVES = 8
_COPY_AT_ONCE_BYTES = 256 * 2**10
_AS_GIVEN = frozenset({Shape.DATA, Shape.TEXT})
_NUMBERS = frozenset({type(None), bool, int, float})
_ATOMS = _NUMBERS | {str}


class Snapshot:
    """The fields of one record in memory of the recorder's own.

    Until finish_copies() has been called, by the pipeline's thread, fields on a device are PendingCopies, and small
    tensors of the host are not among the fields.
    """

    __slots__ = ("_devices", "_kind", "_later", "_leaves", "_pending", "_small", "_transfers", "fields", "memory")

    def __init__(self, kind: str, memory: SnapshotMemory, devices: Devices) -> None:
        self.memory = memory
        self.fields: dict[str, Any] = {}
        self._kind = kind
        self._devices = devices
        self._pending: list[PendingCopy] = []
        self._small = SmallTensors()
        self._transfers: list[Transfer] = []
        self._leaves = _RECORD_LEAVES
        self._later: list[Later] = []

    def add(self, name: str, value: Any) -> None:
        """Copies one field. What the kind declares to be data or text keeps its lists as lists; for what is made later
        there is room."""
        if is_tensor(value):
            if value.is_nested:
                self._add_rows(name, value.unbind())
            elif is_plain(value) and self._small.takes(name, value):
                self.fields[name] = None  # its place among the fields
            else:
                self.fields[name] = self._own_tensor(value)
        elif isinstance(value, np.ndarray):
            self.fields[name] = self._own_array(value)
        elif isinstance(value, EncodedArray):
            self.fields[name] = self._own_encoded(value)
        elif isinstance(value, Ragged):
            values: Any = value.values
            owned = self._own_encoded(values) if isinstance(values, EncodedArray) else self._own(values)
            self.fields[name] = Ragged(owned, self._own(value.offsets))
        elif isinstance(value, Later):
            self._take(value.nbytes)
            self._later.append(value)
        elif isinstance(value, list | tuple) and value and shape_of(self._kind, name) not in _AS_GIVEN:
            self._add_list(name, value)
        else:
            self.fields[name] = self._plain(value)

    def seal(self) -> None:
        """Ends the training thread's part: from here on the caller's data is its own again."""
        if self._small:
            self._small.copy(self._take)
        if self._pending:
            self._transfers = self._devices.send(self._pending, self._take)
        if self._leaves:
            self._take(0)

    def begin_copies(self) -> None:
        for transfer in self._transfers:
            transfer.begin()

    def finish_copies(self) -> None:
        """Waits for what is still on a device; afterwards every field is in host memory."""
        for transfer in self._transfers:
            transfer.finish()
        if self._small:
            self.fields |= self._small.arrays()
            self._small = SmallTensors()
        if self._pending:
            self.fields = {name: _copied(value) for name, value in self.fields.items()}
            self._pending = []
        while self._later:
            self.fields |= self._made_fields(self._later.pop().make())

    def _made_fields(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of host memory in the form in which add() keeps them."""
        own = Snapshot(self._kind, HeapMemory(), self._devices)
        for name, value in made.items():
            own.add(name, value)
        if own._pending:
            raise ValueError("`later` may give tensors of the host only")
        own.seal()
        own.finish_copies()
        return own.fields

    def _add_list(self, name: str, values: Sequence[Any]) -> None:
        first = values[0]
        if is_tensor(first) or isinstance(first, np.ndarray):
            self._add_rows(name, values)
        elif isinstance(first, list | tuple) and all(isinstance(row, list | tuple) for row in values):
            ragged = ragged_from_lists(values, self.memory)
            self.fields[name] = self._deep(values) if ragged is None else ragged
        else:
            array = array_from_list(values, self.memory)
            self.fields[name] = self._plain(values) if array is None else array

    def _add_rows(self, name: str, rows: Sequence[Any]) -> None:
        """Rows given as arrays or tensors: one value each, one vector each, or more, whose shapes are kept
        separately."""
        if is_tensor(rows[0]) and all(is_tensor(row) for row in rows) and rows[0].device.type != "cpu":
            torch = torch_module()
            assert torch is not None
            tensors = [plain_tensor(row) for row in rows]
            shapes = [tuple(row.shape) for row in tensors]
            flat: Any = self._own_tensor(torch.cat([row.reshape(-1) for row in tensors]))
        else:
            arrays = [array_of(plain_tensor(row)) if is_tensor(row) else np.asarray(row) for row in rows]
            shapes = [array.shape for array in arrays]
            flat = self._own_concatenated(arrays)
        if all(shape == () for shape in shapes):
            self.fields[name] = flat
            return
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([int(np.prod(shape)) for shape in shapes], out=offsets[1:])
        self.fields[name] = _PendingRagged(flat, offsets) if isinstance(flat, PendingCopy) else Ragged(flat, offsets)
        if any(len(shape) != 1 for shape in shapes):
            self.fields[f"{name}_shapes"] = self._plain(shapes)

    def _own_concatenated(self, arrays: list[np.ndarray | EncodedArray]) -> Any:
        bits = [array.bits if isinstance(array, EncodedArray) else array for array in arrays]
        dtype = np.result_type(*bits)
        target = self.memory.take(sum(array.size for array in bits) * dtype.itemsize).view(dtype)
        np.concatenate([array.reshape(-1) for array in bits], out=target)
        first = arrays[0]
        return EncodedArray(target, first.dtype) if isinstance(first, EncodedArray) else target

    def _own_tensor(self, tensor: Any) -> Any:
        tensor = plain_tensor(tensor)
        if tensor.device.type == "cuda":
            self._pending.append(PendingCopy(tensor))
            return self._pending[-1]
        array = array_of(tensor if tensor.device.type == "cpu" else tensor.cpu())
        return self._own_encoded(array) if isinstance(array, EncodedArray) else self._own(array)

    def _own_encoded(self, array: EncodedArray) -> Any:
        return EncodedArray(self._own(array.bits), array.dtype)

    def _own_array(self, array: np.ndarray) -> Any:
        if array.dtype.kind in "biufc" and array.dtype.itemsize <= 16 and array.dtype.char not in "gG":
            return self._own(array)
        return self._plain(array.tolist())

    def _own(self, array: np.ndarray) -> np.ndarray:
        dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
        raw = self._take(array.nbytes)
        target = raw.view(dtype).reshape(array.shape)
        if 0 < array.nbytes <= _COPY_AT_ONCE_BYTES and array.flags.c_contiguous and array.dtype == dtype:
            # numpy releases the GIL for a copy; getting it back can take longer than a small copy.
            raw.data[:] = array.reshape(-1).view(np.uint8).data
        else:
            np.copyto(target, array)
        return target

    def _take(self, size: int) -> np.ndarray:
        """Takes that many bytes plus those charged for non-array data, in one block."""
        raw = self.memory.take(size + _LEAF_BYTES * self._leaves)[:size]
        self._leaves = 0
        return raw

    def _deep(self, values: Sequence[Any]) -> Any:
        """Lists nested three deep or more: an array where they are regular and numeric, else data."""
        try:
            array = np.asarray(values)
        except ValueError:
            return self._plain(values)
        return self._own_array(array)

    def _plain(self, value: Any) -> Any:
        """JSON-like data, copied; tensors in it become lists, anything unknown its text."""
        self._leaves += 1
        if type(value) in _NUMBERS:
            return value
        if isinstance(value, str):
            self._leaves += len(value) // _LEAF_BYTES
            return str(value)
        if isinstance(value, bytes | bytearray):
            self._leaves += len(value) // _LEAF_BYTES
            return bytes(value)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, list | tuple | set | frozenset):
            return self._rows(value) or [self._plain(item) for item in value]
        if isinstance(value, Mapping):
            return self._plain_mapping(value)
        if is_tensor(value):
            owned = self._own_tensor(value)
            return owned if isinstance(owned, PendingCopy) else _copied_data(owned)
        if isinstance(value, np.ndarray):
            return self._plain(value.tolist())
        if isinstance(value, bool | int | float):  # subclasses, such as IntEnum
            return next(kind(value) for kind in (bool, int, float) if isinstance(value, kind))
        return self._plain(str(value))

    def _plain_mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        if type(value) is dict and _NUMBERS.issuperset(map(type, value.values())):
            # Such as the metrics of a micro-batch.
            self._leaves += len(value)
            return dict(zip(map(str, value), value.values(), strict=True))
        return {str(key): self._plain(item) for key, item in value.items()}

    def _rows(self, rows: Collection[Any]) -> list[dict[Any, Any]] | None:
        """Mappings of names to numbers and text, such as a batch's extra fields, copied together; else None."""
        if set(map(type, rows)) != {dict}:
            return None
        copies = list(map(dict.copy, rows))
        values = list(chain.from_iterable(map(dict.values, copies)))
        types = set(map(type, values))
        if not types <= _ATOMS or not set(map(type, set().union(*copies))) <= {str}:
            return None
        text = len("".join([value for value in values if type(value) is str])) if str in types else 0
        self._leaves += len(rows) + len(values) + text // _LEAF_BYTES
        return copies


class _PendingRagged:
    """Ragged rows whose values are still on a device."""

    def __init__(self, values: PendingCopy, offsets: np.ndarray) -> None:
        self.values = values
        self.offsets = offsets


def _copied(value: Any) -> Any:
    """A field with every PendingCopy in it replaced by the array it has become."""
    if isinstance(value, PendingCopy):
        return value.array()
    if isinstance(value, _PendingRagged):
        return Ragged(value.values.array(), value.offsets)  # type: ignore[arg-type]
    return _copied_data(value) if isinstance(value, dict | list) else value


def _copied_data(value: Any) -> Any:
    if isinstance(value, PendingCopy):
        value = value.array()
    if isinstance(value, EncodedArray):
        value = value.decode()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _copied_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied_data(item) for item in value]
    return value
