"""The root cause of a failed run, with its fix: known failures, log diagnosis, probes of the machine, fixes."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.doctor.diagnosis import Cause, Diagnosis, ProbeResult, Quote
    from rldbg.doctor.drafts import draft
    from rldbg.doctor.engines import EngineName
    from rldbg.doctor.entries import KnownFailure, Role
    from rldbg.doctor.evidence import Failure, Hit
    from rldbg.doctor.fixes import home_folder, steps_of
    from rldbg.doctor.jobs import job_facts
    from rldbg.doctor.library import Library
    from rldbg.doctor.nodes import cluster_address, probe_nodes
    from rldbg.doctor.patterns import SearchIndex
    from rldbg.doctor.pipeline import diagnose, explain_failure
    from rldbg.doctor.preflight import check_needs
    from rldbg.doctor.settings import RunSettings, raise_soft_limits
    from rldbg.doctor.watching import watch

__all__ = ["Diagnosis", "diagnose"]

__getattr__, __dir__ = lazy_names(__name__)
