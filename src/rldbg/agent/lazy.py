"""`rldbg.lazy` for the agent, which imports nothing of rldbg: names that its packages list are loaded on first use."""

import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package; its public names are what it imports under TYPE_CHECKING."""

    @cache
    def modules() -> dict[str, tuple[str, str]]:
        import ast  # the processes of a job load this package and ask it for nothing

        tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
        blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.asname or alias.name: (f".{node.module}", alias.name) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = modules()[name]
        return getattr(importlib.import_module(module, package), own)

    return load, lambda: sorted(modules())
