"""Profiles of the workers you name in the steps you name: selection, collection, one timeline, a report."""

from typing import TYPE_CHECKING

from rldbg.agent.profiling import Hook, Plan
from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.profiling.collection import Manifest, places_by_node
    from rldbg.profiling.profiled_run import Attached, Profiled, profile_running, run_profiled
    from rldbg.profiling.report import ProfileReport, make_report
    from rldbg.profiling.request import ProfileRequest, make_plan
    from rldbg.profiling.timeline import Merged, write_timeline
    from rldbg.profiling.tracks import Track, read_tracks

__getattr__, __dir__ = lazy_names(__name__)
