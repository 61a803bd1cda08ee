"""The root cause of a failed run, with its fix: known failures, log diagnosis, probes of the machine, fixes."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.doctor.diagnosis import Cause, Diagnosis, ProbeResult, Quote
    from rldbg.doctor.drafts import draft
    from rldbg.doctor.engines import EngineName
    from rldbg.doctor.entries import Category, Entry, Role
    from rldbg.doctor.evidence import Failure, Hit
    from rldbg.doctor.fixes import home_folder, steps_of
    from rldbg.doctor.jobs import job_facts
    from rldbg.doctor.library import Library
    from rldbg.doctor.nodes import cluster_address, probe_nodes
    from rldbg.doctor.patterns import SearchIndex
    from rldbg.doctor.pipeline import diagnose
    from rldbg.doctor.post_run import explain_failure
    from rldbg.doctor.preflight import check_needs
    from rldbg.doctor.run_settings import RunSettings, raise_soft_limits
    from rldbg.doctor.watching import watch

__all__ = [
    "Category",
    "Cause",
    "Diagnosis",
    "EngineName",
    "Entry",
    "Failure",
    "Hit",
    "Library",
    "ProbeResult",
    "Quote",
    "Role",
    "RunSettings",
    "SearchIndex",
    "check_needs",
    "cluster_address",
    "diagnose",
    "draft",
    "explain_failure",
    "home_folder",
    "job_facts",
    "probe_nodes",
    "raise_soft_limits",
    "steps_of",
    "watch",
]

_MODULES = {
    "diagnosis": (
        "Cause",
        "Diagnosis",
        "ProbeResult",
        "Quote",
    ),
    "drafts": ("draft",),
    "engines": ("EngineName",),
    "entries": (
        "Category",
        "Entry",
        "Role",
    ),
    "evidence": (
        "Failure",
        "Hit",
    ),
    "fixes": (
        "home_folder",
        "steps_of",
    ),
    "jobs": ("job_facts",),
    "library": ("Library",),
    "nodes": (
        "cluster_address",
        "probe_nodes",
    ),
    "patterns": ("SearchIndex",),
    "pipeline": ("diagnose",),
    "post_run": ("explain_failure",),
    "preflight": ("check_needs",),
    "run_settings": (
        "RunSettings",
        "raise_soft_limits",
    ),
    "watching": ("watch",),
}

__getattr__, __dir__ = lazy_names(__name__, {name: module for module, names in _MODULES.items() for name in names})
