"""The debugger for distributed RL post-training. Names are loaded when they are first used."""

import importlib
from typing import TYPE_CHECKING, Any

from rldbg.version import __version__

if TYPE_CHECKING:
    from rldbg.core import Finding, Run, SampleId

_HOME = {
    "Finding": "rldbg.core",
    "Run": "rldbg.core",
    "SampleId": "rldbg.core",
    "Recorder": "rldbg.recording",
    "Recording": "rldbg.recording",
    "open": "rldbg.recording",
    "record_from": "rldbg.recording",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rldbg' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])


__all__ = ["Finding", "Run", "SampleId", "__version__"]
