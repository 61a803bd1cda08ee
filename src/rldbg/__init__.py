"""The debugger for distributed RL post-training. Names are loaded when they are first used."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names
from rldbg.version import __version__

if TYPE_CHECKING:
    from rldbg.analysis import check, compare
    from rldbg.annotations import phase, step
    from rldbg.auto import breakpoint, identify
    from rldbg.core import Finding, Identity, Run, SampleId
    from rldbg.notebooks import view
    from rldbg.recording import Recorder, Recording, open
    from rldbg.training_loop import RecordedLoop, record_loop
    from rldbg.tripwire import WatchedLoop, watch

__all__ = [
    "Finding",
    "Identity",
    "RecordedLoop",
    "Recorder",
    "Recording",
    "Run",
    "SampleId",
    "WatchedLoop",
    "__version__",
    "breakpoint",
    "check",
    "compare",
    "identify",
    "open",
    "phase",
    "record_loop",
    "step",
    "view",
    "watch",
]

__getattr__, __dir__ = lazy_names(__name__)
