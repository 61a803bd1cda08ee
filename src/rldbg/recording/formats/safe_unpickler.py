"""Pickles read as data: the C unpickler with every global replaced by a stand-in of ours.

Nothing a pickle names is imported or called. The objects handed to the unpickler are made for one load and
refuse BUILD, so that no pickle can change anything that outlives it.
"""

import io
import pickle
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from functools import partial
from typing import Any, Never

import numpy as np

from rldbg.recording.formats import numpy_rebuild, torch_rebuild
from rldbg.recording.formats.legacy_torch import read_legacy, read_storage
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.opaque import Opaque, nested_class, opaque_class
from rldbg.recording.formats.pickle_scan import PickleScan
from rldbg.recording.formats.settle import settled

_PYTHON2_NAMES = {"__builtin__": "builtins", "copy_reg": "copyreg", "exceptions": "builtins"}
_PYTHON2_BUILTINS = {"xrange": "range", "unicode": "str", "long": "int"}
_FREE_WORK = 1 << 20
_WORK_PER_BYTE = 4  # honest calls take in what the file spells out, once


class WorkBudget:
    """How much the calls of one load may take in; a pickle can hand one large argument to a million calls."""

    __slots__ = ("_left",)

    def __init__(self, size_bytes: int) -> None:
        self._left = max(_FREE_WORK, _WORK_PER_BYTE * size_bytes)

    def charge(self, args: tuple[Any, ...]) -> None:
        self._left -= sum(_weight(value, 3) for value in args)
        if self._left < 0:
            raise Malformed("a few bytes that ask for more work than any dump needs")


def _weight(value: Any, levels: int) -> int:
    """How much a call may have to look at: the length of its argument, and of mappings inside mappings."""
    if isinstance(value, dict):
        return len(value) + (sum(_weight(item, levels - 1) for item in value.values()) if levels else 0)
    if isinstance(value, str | bytes | bytearray | list | tuple | set | frozenset):
        return len(value)
    return value.size if isinstance(value, np.ndarray) else 1


class Ordered(dict[Any, Any]):
    """collections.OrderedDict as a dict without attributes (torch's state dicts carry `_metadata`, left out)."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise Malformed("an OrderedDict has an unknown state")


class PickledCall:
    """A function of ours under the name of one of theirs. Callable, and nothing else can be done to it."""

    __slots__ = ("__budget", "__function")

    def __init__(self, function: Callable[..., Any], budget: WorkBudget) -> None:
        self.__function = function
        self.__budget = budget

    def __call__(self, *args: Any) -> Any:
        self.__budget.charge(args)
        return self.__function(*args)

    def __setstate__(self, state: Any) -> Never:
        raise Malformed("the pickle tries to change a function")


class SafeUnpickler(pickle.Unpickler):
    """One load of a scanned pickle. `load_storage` answers torch's persistent ids; a plain pickle has none."""

    def __init__(self, scan: PickleScan, load_storage: Callable[[Any], Any] | None = None) -> None:
        super().__init__(io.BytesIO(scan.pickled), encoding="latin1")
        self._arrays = scan.arrays
        self._load_storage = load_storage
        self._budget = WorkBudget(len(scan.pickled))
        self._found: dict[tuple[str, str], Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        if type(module) is not str or type(name) is not str:
            raise Malformed("a global's name is not text")
        key = (_PYTHON2_NAMES.get(module, module), name)
        if key[0] == "builtins":
            key = ("builtins", _PYTHON2_BUILTINS.get(name, name))
        if key not in self._found:
            self._found[key] = _stand_in(*key, self._budget)
        return self._found[key]

    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is int:
            return self._arrays[pid]
        if self._load_storage is None:
            raise Malformed("a plain pickle refers to a storage outside itself")
        return self._load_storage(pid)


def unpickle(
    data: bytes | memoryview, load_storage: Callable[[Any], Any] | None = None, *, arrays: bool = False
) -> Any:
    """The data of a pickle, checked and free of shells. With `arrays`, long lists of numbers are 1-D arrays."""
    scan = PickleScan(bytes(data), take_arrays=arrays)
    return settled(SafeUnpickler(scan, load_storage).load(), len(data))


def unpickle_legacy(data: bytes, *, arrays: bool = False) -> Any:
    """The object in a torch.save file from before zip files, under the same rules."""
    return settled(read_legacy(data, partial(_read_pickle, arrays=arrays)), len(data))


def _read_pickle(data: bytes, load_storage: Callable[[Any], Any], *, arrays: bool = False) -> tuple[Any, int]:
    scan = PickleScan(data, take_arrays=arrays)
    return SafeUnpickler(scan, load_storage).load(), scan.end


def _stand_in(module: str, name: str, budget: WorkBudget) -> Any:
    if module in ("torch", "torch.storage", "torch.cuda"):
        found = _torch_name(name)
        if found is not None:
            return found
    function = _FUNCTIONS.get(f"{module}.{name}")
    return opaque_class(module, name) if function is None else PickledCall(function, budget)


def _torch_name(name: str) -> Any:
    if name in torch_rebuild.STORAGE_CLASSES:
        return torch_rebuild.StorageClass(torch_rebuild.STORAGE_CLASSES[name])
    dtype = torch_rebuild.ALIASES.get(name, name)
    if dtype in torch_rebuild.KNOWN:
        return f"torch.{dtype}"
    if name.startswith("Q") and name.endswith("Storage"):
        return torch_rebuild.refuse_quantized()
    return None


def _ordered(items: Any = ()) -> Ordered:
    return Ordered(items)


def _default_dict(_factory: Any = None, items: Any = ()) -> Ordered:
    return Ordered(items)


def _set(items: Any = ()) -> set[Any]:
    return set(_list_of(items))


def _frozenset(items: Any = ()) -> frozenset[Any]:
    return frozenset(_list_of(items))


def _list_of(items: Any) -> list[Any] | tuple[Any, ...]:
    if isinstance(items, np.ndarray):
        return list(items.tolist())
    if not isinstance(items, list | tuple):
        raise Malformed("a set is not made from a list")
    return items


def _bytearray(data: Any = b"", encoding: Any = "latin1") -> bytearray:
    if isinstance(data, str) and encoding in ("latin1", "latin-1"):
        data = data.encode("latin1")
    if not isinstance(data, bytes | bytearray):
        raise Malformed("a bytearray is not made from bytes")
    return bytearray(data)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """_codecs.encode, by which protocol 2 writes bytes."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8"):
        raise Malformed("_codecs.encode is used for something other than bytes")
    return text.encode(encoding)


def _bytes(data: Any = b"", *_: Any) -> bytes:
    if not isinstance(data, bytes):
        raise Malformed("bytes are not made from bytes")
    return data


def _new_object(cls: Any, *args: Any) -> Any:
    """copyreg.__newobj__ and copyreg._reconstructor: an instance of a class that is a stand-in itself."""
    made = cls(*args)
    if not isinstance(made, Opaque):
        raise Malformed("copyreg is used on something other than a class")
    return made


def _load_from_bytes(data: Any) -> torch_rebuild.Storage:
    return read_storage(data, _read_pickle)


def _path(*parts: Any) -> str:
    return "/".join(str(part).rstrip("/") if part != "/" else "" for part in parts)


_NUMPY_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "multiarray._reconstruct": numpy_rebuild.rebuild_shell,
    "multiarray.scalar": numpy_rebuild.build_scalar,
    "numeric._frombuffer": numpy_rebuild.from_buffer,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "_codecs.encode": _encode,
    "builtins.bytearray": _bytearray,
    "builtins.bytes": _bytes,
    "builtins.complex": complex,
    "builtins.frozenset": _frozenset,
    "builtins.getattr": nested_class,
    "builtins.set": _set,
    "collections.Counter": _ordered,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default_dict,
    "copyreg.__newobj__": _new_object,
    "copyreg._reconstructor": _new_object,
    "datetime.date": date,
    "datetime.datetime": datetime,
    "datetime.time": time,
    "datetime.timedelta": timedelta,
    "datetime.timezone": timezone,
    "numpy.dtype": numpy_rebuild.DtypeShell,
    "pathlib.PosixPath": _path,
    "pathlib.PurePosixPath": _path,
    "pathlib._local.PosixPath": _path,
    "tensordict._reductions._rebuild_tensordict_files_consolidated": torch_rebuild.rebuild_consolidated,
    "torch.Size": tuple,
    "torch.device": torch_rebuild.device_text,
    "torch._tensor._rebuild_from_type_v2": torch_rebuild.rebuild_wrapped,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": torch_rebuild.rebuild_first,
    "torch._utils._rebuild_device_tensor_from_numpy": torch_rebuild.rebuild_first,
    "torch._utils._rebuild_parameter": torch_rebuild.rebuild_first,
    "torch._utils._rebuild_parameter_with_state": torch_rebuild.rebuild_first,
    "torch._utils._rebuild_qtensor": torch_rebuild.refuse_quantized,
    "torch._utils._rebuild_tensor": torch_rebuild.rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": torch_rebuild.rebuild_tensor,
    "torch._utils._rebuild_tensor_v3": torch_rebuild.rebuild_tensor_v3,
    "torch.serialization._get_layout": str,
    "torch.storage._load_from_bytes": _load_from_bytes,
    **{f"numpy.{core}.{name}": function for core in ("core", "_core") for name, function in _NUMPY_FUNCTIONS.items()},
}
