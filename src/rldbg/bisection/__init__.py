"""The first module whose output differs between two models, two settings, or a model and a dump."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.bisection.comparing import BisectReport, ModuleDifference, bisect_captures
    from rldbg.bisection.module_outputs import Capture, capture_pass
    from rldbg.bisection.sides import bisect_runs

__getattr__, __dir__ = lazy_names(__name__)
