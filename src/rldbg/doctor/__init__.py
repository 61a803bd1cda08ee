"""The root cause of a failed run, with its fix: known failures, log diagnosis, probes of the machine, fixes."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.doctor.answer.diagnosis import Cause, Diagnosis, ProbeResult, Quote
    from rldbg.doctor.drafts import draft
    from rldbg.doctor.jobs import job_facts
    from rldbg.doctor.knowledge.entries import KnownFailure, Role
    from rldbg.doctor.knowledge.library import Library
    from rldbg.doctor.knowledge.patterns import SearchIndex
    from rldbg.doctor.logs.evidence import Failure, Hit
    from rldbg.doctor.machine.fixes import home_folder, steps_of
    from rldbg.doctor.machine.nodes import cluster_address, probe_nodes
    from rldbg.doctor.machine.preflight import check_needs
    from rldbg.doctor.machine.settings import RunSettings, raise_soft_limits
    from rldbg.doctor.pipeline import diagnose, explain_failure
    from rldbg.doctor.search.engines import EngineName
    from rldbg.doctor.watching import watch

__all__ = ["Diagnosis", "diagnose"]

__getattr__, __dir__ = lazy_names(__name__)
