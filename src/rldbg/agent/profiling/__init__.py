"""Profiling inside a process of a profiled run: which workers and steps, the tools, the phases, and what was written.

`process` is the entry point: the start-up hook and the agent load it. Names are loaded when first used, because the
nsys supervisor and `rldbg profile` need few of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actors import CLUSTER, WORKERS
    from .framework_hooks import UNRESOLVED, file_of, installed_version, is_expected
    from .nsys import INSTALL, find_nsys, nsys_options
    from .phases import PHASES, HookedFunction, Phases
    from .plan import OPEN_END, PLAN_VARIABLE, TEXT_VARIABLE, Hook, Plan, fresh_path
    from .process import answer, begin, join
    from .ticket import OPEN_STATES, TICKETS, read_tickets
    from .window import never_began

_MODULES = {
    "actors": ("CLUSTER", "WORKERS"),
    "framework_hooks": ("UNRESOLVED", "file_of", "installed_version", "is_expected"),
    "nsys": ("INSTALL", "find_nsys", "nsys_options"),
    "phases": ("PHASES", "HookedFunction", "Phases"),
    "plan": ("OPEN_END", "PLAN_VARIABLE", "TEXT_VARIABLE", "Hook", "Plan", "fresh_path"),
    "process": ("answer", "begin", "join"),
    "ticket": ("OPEN_STATES", "TICKETS", "read_tickets"),
    "window": ("never_began",),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
