"""Packages whose public names are loaded on first use, which keeps `--help` and light verbs fast.

if TYPE_CHECKING:
    from rldbg.core.run import Run
__getattr__, __dir__ = lazy_names(__name__, {"Run": "run"})
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package; `modules` maps each public name to its module."""

    def load(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{module}"), name)

    return load, lambda: sorted(modules)


def shown_by(module: str) -> Callable[[type[T]], type[T]]:
    """Let terminals and notebooks show the results of a class by `to_terminal` and `to_html` of rldbg.reports.MODULE.

    Results know nothing of how they look: the module is loaded by name when somebody looks.
    """

    def renderer(name: str) -> Callable[[Any], Any]:
        return lambda result: getattr(importlib.import_module(f"rldbg.reports.{module}"), name)(result)

    def decorate(cls: type[T]) -> type[T]:
        cls.__rich__ = renderer("to_terminal")  # type: ignore[attr-defined]
        cls._repr_html_ = renderer("to_html")  # type: ignore[attr-defined]
        return cls

    return decorate
