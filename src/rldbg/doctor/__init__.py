"""The root cause of a failed run, with its fix: known failures, log diagnosis, probes of the machine, fixes."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.doctor.diagnosis import Cause, Diagnosis, ProbeResult, Quote
    from rldbg.doctor.entries import Entry, Role
    from rldbg.doctor.library import Library
    from rldbg.doctor.patterns import SearchIndex
    from rldbg.doctor.pipeline import diagnose
    from rldbg.doctor.post_run import explain_failure
    from rldbg.doctor.run_settings import RunSettings, raise_soft_limits

__all__ = [
    "Cause",
    "Diagnosis",
    "Entry",
    "Library",
    "ProbeResult",
    "Quote",
    "Role",
    "RunSettings",
    "SearchIndex",
    "diagnose",
    "explain_failure",
    "raise_soft_limits",
]

_MODULES = {
    "post_run": ("explain_failure",),
    "pipeline": ("diagnose",),
    "diagnosis": ("Cause", "Diagnosis", "ProbeResult", "Quote"),
    "entries": ("Entry", "Role"),
    "library": ("Library",),
    "patterns": ("SearchIndex",),
    "run_settings": ("RunSettings", "raise_soft_limits"),
}

__getattr__, __dir__ = lazy_names(__name__, {name: module for module, names in _MODULES.items() for name in names})
