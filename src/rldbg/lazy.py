"""Packages whose public names are loaded on first use, which keeps `--help` and light verbs fast.

if TYPE_CHECKING:
    from rldbg.core.run import Run
__getattr__, __dir__ = lazy_names(__name__)
"""

import ast
import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package; its public names are what it imports under TYPE_CHECKING."""

    @cache
    def modules() -> dict[str, str]:
        tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
        blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        # Dunder names are asked for by the import system itself, for every import of a submodule.
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules()[name]), name)

    return load, lambda: sorted(modules())


def shown_by(module: str) -> Callable[[type[T]], type[T]]:
    """Let terminals and notebooks show the results of a class by `to_terminal` of rldbg.reports.MODULE.

    Results do not depend on their rendering: the module is loaded by name when a result is shown.
    """

    def decorate(cls: type[T]) -> type[T]:
        cls.__rich__ = _report(module, "to_terminal")  # type: ignore[attr-defined]
        return html_by(module)(cls)

    return decorate


def html_by(module: str, name: str = "to_terminal") -> Callable[[type[T]], type[T]]:
    """Let notebooks show what a function of rldbg.reports.MODULE makes of a result for the terminal."""

    def shown(result: Any) -> str:
        html: str = _report("plain_text", "to_html")(_report(module, name)(result))
        return html

    def decorate(cls: type[T]) -> type[T]:
        cls._repr_html_ = shown  # type: ignore[attr-defined]
        return cls

    return decorate


def _report(module: str, name: str) -> Callable[[Any], Any]:
    return lambda result: getattr(importlib.import_module(f"rldbg.reports.{module}"), name)(result)
