"""Profiles of the workers you name in the steps you name: selection, collection, one timeline, a report."""

from typing import TYPE_CHECKING

from rldbg.agent.profiling import Hook, Plan
from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.profiling.attaching import Attached, profile_running
    from rldbg.profiling.collection import Manifest, places_by_node
    from rldbg.profiling.profiled_run import Profiled, run_profiled
    from rldbg.profiling.report import Report, make_report
    from rldbg.profiling.request import ProfileRequest, make_plan
    from rldbg.profiling.timeline import Merged, write_timeline

__all__ = [
    "Attached",
    "Hook",
    "Manifest",
    "Merged",
    "Plan",
    "ProfileRequest",
    "Profiled",
    "Report",
    "make_plan",
    "make_report",
    "places_by_node",
    "profile_running",
    "run_profiled",
    "write_timeline",
]

_MODULES = {
    "attaching": ("Attached", "profile_running"),
    "collection": ("Manifest", "places_by_node"),
    "report": ("Report", "make_report"),
    "request": ("ProfileRequest", "make_plan"),
    "profiled_run": ("Profiled", "run_profiled"),
    "timeline": ("Merged", "write_timeline"),
}

__getattr__, __dir__ = lazy_names(__name__, {name: module for module, names in _MODULES.items() for name in names})
