"""Runs when a Python process of an armed run starts, then hands over to the sitecustomize that it hides."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).parent


def _begin() -> None:
    try:
        importlib.import_module("rldbg_startup").begin()
    except Exception as error:  # noqa: BLE001 - the user's program must start whatever we break
        sys.stderr.write(f"rldbg: the agent could not start: {type(error).__name__}: {error}\n")


def _run_the_next() -> None:
    """The module of this name that would have run without us."""
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE.resolve()]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_begin()
_run_the_next()
