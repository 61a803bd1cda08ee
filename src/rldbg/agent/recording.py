"""Records functions of frameworks: when the program imports a module that has any, what records them is loaded.

RLDBG_RECORD_HOOKS says which modules, and where to record. The agent needs the standard library only, recording needs
numpy and the rest of rldbg: it is loaded from beside this folder, in the process that imports a framework and no other.
"""

import importlib
import importlib.util
import json
import os
import sys
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
    AfterImports(dict.fromkeys(modules, _hook)).install()


def _hook(module: ModuleType) -> None:
    load_rldbg()
    importlib.import_module("rldbg.frameworks.recorded").hook_module(module)


def load_rldbg() -> None:
    """The rldbg that this agent is part of, where the program's environment has none."""
    if "rldbg" in sys.modules:
        return
    folder = Path(__file__).resolve().parent.parent
    spec = importlib.util.spec_from_file_location(
        "rldbg", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    sys.modules["rldbg"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["rldbg"])
