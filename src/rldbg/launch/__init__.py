"""Arming and starting of training scripts and commands, and the way to a cluster."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.launch.armed_run import Outcome, run_armed
    from rldbg.launch.explanation import Explained, Explanation, explain
    from rldbg.launch.profile import profiles
    from rldbg.launch.request import Request, resolve_command

__all__ = ["Explained", "Explanation", "Outcome", "Request", "explain", "profiles", "resolve_command", "run_armed"]

_MODULES = {
    "explanation": ("Explained", "Explanation", "explain"),
    "profile": ("profiles",),
    "request": ("Request", "resolve_command"),
    "armed_run": ("Outcome", "run_armed"),
}

__getattr__, __dir__ = lazy_names(__name__, {name: module for module, names in _MODULES.items() for name in names})
