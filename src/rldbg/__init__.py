"""The debugger for distributed RL post-training. Names are loaded when they are first used."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names
from rldbg.version import __version__

if TYPE_CHECKING:
    from rldbg.core import Finding, Identity, Run, SampleId

__all__ = ["Finding", "Identity", "Run", "SampleId", "__version__"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Finding": "core",
        "Run": "core",
        "Identity": "core",
        "SampleId": "core",
        "Recorder": "recording",
        "Recording": "recording",
        "open": "recording",
        "breakpoint": "auto",
        "step": "marking",
        "phase": "marking",
    },
)
