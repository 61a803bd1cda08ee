"""Inert stand-ins for classes a pickle names and we do not know, and the names that make a pickle hostile.

A stand-in is data: module, name, arguments, state. Nothing is imported, looked up or called to make one.
"""

import re
import sys
from typing import Any, Never

from rldbg.recording.formats.malformed import Malformed

_EXCEPTION = re.compile(r"[A-Z]\w*(Error|Exception|Warning)")
_HOSTILE_HINT = "do not load this file with torch.load or pickle: it would run code; ask whoever made it"

# Names of the standard library that only ever stand for data. Every other one makes the file hostile: a dump
# has no reason to name os, subprocess, operator, importlib, functools or types, and an attack has.
_HARMLESS = {
    "builtins": frozenset(
        [
            "object",
            "list",
            "dict",
            "tuple",
            "int",
            "float",
            "str",
            "bytes",
            "bool",
            "slice",
            "range",
            "Ellipsis",
            "NotImplemented",
            "StopIteration",
            "StopAsyncIteration",
            "KeyboardInterrupt",
            "SystemExit",
        ]
    ),
    "_io": frozenset({"BytesIO", "StringIO"}),
    "argparse": frozenset({"Namespace"}),
    "array": frozenset({"array", "_array_reconstructor"}),
    "collections": frozenset({"deque", "UserDict", "UserList", "UserString", "ChainMap"}),
    "datetime": frozenset({"date", "datetime", "time", "timedelta", "timezone"}),
    "decimal": frozenset({"Decimal"}),
    "enum": frozenset({"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}),
    "fractions": frozenset({"Fraction"}),
    "ipaddress": frozenset({"IPv4Address", "IPv6Address"}),
    "pathlib._local": frozenset({"PosixPath", "WindowsPath", "PurePosixPath"}),
    "pathlib": frozenset({"Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath"}),
    "random": frozenset({"Random"}),
    "re": frozenset({"_compile"}),
    "types": frozenset({"SimpleNamespace", "MappingProxyType"}),
    "typing": frozenset({"Any", "Union", "Optional", "Dict", "List", "Tuple", "Literal"}),
    "uuid": frozenset({"UUID", "SafeUUID"}),
    "zoneinfo": frozenset({"ZoneInfo"}),
}
# Ways to run code outside the standard library: by package, or by full name.
_HOSTILE_PACKAGES = frozenset({"cloudpickle", "commands", "dill", "joblib", "jsonpickle", "pip", "setuptools"})
_HOSTILE_PREFIXES = (
    "numpy.load",
    "numpy.fromfile",
    "numpy.memmap",
    "numpy.f2py",
    "numpy.distutils",
    "numpy.testing",
    "numpy.lib.npyio",
    "pandas.eval",
    "pandas.io.pickle",
    "pandas.read_",
    "torch._inductor",
    "torch._dynamo",
    "torch.compile",
    "torch.hub",
    "torch.jit",
    "torch.load",
    "torch.ops",
    "torch.package",
    "torch.serialization.load",
    "torch.utils.cpp_extension",
    "torch.utils.model_zoo",
    "torch.utils.data.datapipes",
    "torch.fx",
    "ray.cloudpickle",
    "ray.remote",
    "ray.get",
    "ray._private",
    "sympy.core.sympify",
    "transformers.pipeline",
)


class Opaque:
    """An instance of a class this reader does not know, or the result of a call it did not make."""

    __slots__ = ("args", "entries", "items", "kwargs", "module", "name", "state")

    def __init__(self, module: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.module = module
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.state: Any = None
        self.items: list[Any] = []
        self.entries: list[tuple[Any, Any]] = []

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def add(self, item: Any) -> None:
        self.items.append(item)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries.append((key, value))

    def attributes(self) -> dict[str, Any]:
        """What would have become the object's attributes: its state, with __slots__ folded in."""
        parts = self.state if isinstance(self.state, tuple) and len(self.state) == 2 else (self.state,)
        merged: dict[str, Any] = {}
        for part in parts:
            if isinstance(part, dict):
                merged.update(part)
        return merged

    def __repr__(self) -> str:
        return f"<{self.module}.{self.name}, not loaded>"


class OpaqueClass(type):
    """The type of stand-in classes: creating an instance gives an Opaque, and nothing can be changed on them."""

    module: str
    name: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Opaque:  # type: ignore[override]
        return Opaque(cls.module, cls.name, args, kwargs)

    def __setattr__(cls, name: str, value: Any) -> Never:
        raise Malformed(f"the pickle tries to change {cls.module}.{cls.name}", _HOSTILE_HINT)

    def __repr__(cls) -> str:
        return f"<class {cls.module}.{cls.name}, not loaded>"


def opaque_class(module: str, name: str) -> OpaqueClass:
    """A stand-in for a class, usable wherever a pickle may put a class: called, instantiated, or held as a value."""
    refuse_hostile(module, name)

    def new(_cls: type, *args: Any, **kwargs: Any) -> Opaque:
        return Opaque(module, name, args, kwargs)

    return OpaqueClass("Unknown", (), {"module": module, "name": name, "__new__": new})


def refuse_hostile(module: str, name: str) -> None:
    """Raise when naming this global means the pickle wants to run code."""
    root = module.partition(".")[0]
    parts = name.split(".")
    if (
        (root in sys.stdlib_module_names and not _is_harmless(module, name))
        or root in _HOSTILE_PACKAGES
        # jagged tensors carry hints of this plain class, and nothing else of the package
        or (f"{module}.{name}".startswith(_HOSTILE_PREFIXES) and name != "_DimRange")
        or any(_reaches_through(part) for part in (*module.split(".")[1:], *parts[:-1]))
        or (parts[-1].startswith("__") and parts[-1].endswith("__"))
    ):
        raise Malformed(f"hostile: the pickle wants to use {module}.{name}, which can run code", _HOSTILE_HINT)


def _is_harmless(module: str, name: str) -> bool:
    """Names that only ever stand for data; an exception is what went wrong with a sample."""
    return name in _HARMLESS.get(module, ()) or _EXCEPTION.fullmatch(name) is not None


def nested_class(owner: Any = None, name: Any = None, *_: Any) -> OpaqueClass:
    """getattr, by which old pickle protocols name a class inside a class: of a stand-in only, and as another one."""
    if not isinstance(owner, OpaqueClass) or not isinstance(name, str) or not name.isidentifier():
        raise Malformed("hostile: the pickle wants to use builtins.getattr, which can run code", _HOSTILE_HINT)
    return opaque_class(owner.module, f"{owner.name}.{name}")


def _reaches_through(part: str) -> bool:
    """Whether a component of a dotted name leads out of the module it starts in, as in numpy.os.system."""
    return part in {"os", "sys", "subprocess", "builtins", "importlib", "ctypes", "socket", "shutil", "pickle"} or (
        part.startswith("__") and part != "__main__"
    )
