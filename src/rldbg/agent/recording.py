"""Records functions of frameworks: when the program imports a module that has any, what records them is loaded.

RLDBG_RECORD_HOOKS says which modules, and where to record. The agent needs the standard library only, recording needs
numpy and the rest of rldbg: it is loaded from the parent folder, only in a process that imports a framework.
"""

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from .imports import AfterImports
from .settings import say

VARIABLE = "RLDBG_RECORD_HOOKS"


def begin() -> None:
    """At the start of a process of a run that records."""
    try:
        modules: list[str] = json.loads(os.environ[VARIABLE])["modules"]
    except (ValueError, KeyError, TypeError) as error:
        say(f"this process is not recorded: {VARIABLE} cannot be read: {error}")
        return
    offer_rldbg()
    AfterImports(dict.fromkeys(modules, _hook)).install()


def offer_rldbg() -> None:
    """Lets the process import the rldbg that this agent is part of, where its environment has none."""
    sys.meta_path.append(_OwnRldbg())  # type: ignore[arg-type]


def _hook(module: ModuleType) -> None:
    importlib.import_module("rldbg.frameworks.recorded").hook_module(module)


class _OwnRldbg:
    """Finds one package, and only after every other finder has found none of that name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "rldbg":
            return None
        folder = Path(__file__).resolve().parent.parent
        return importlib.util.spec_from_file_location(
            fullname, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
