"""The root cause of a failed run, with its fix: known failures, log diagnosis, probes of the machine, fixes."""

from rldbg.doctor.diagnose import diagnose
from rldbg.doctor.diagnosis import Cause, Diagnosis, ProbeResult, Quote
from rldbg.doctor.entries import Entry, Role
from rldbg.doctor.library import Library
from rldbg.doctor.patterns import SearchIndex

__all__ = ["Cause", "Diagnosis", "Entry", "Library", "ProbeResult", "Quote", "Role", "SearchIndex", "diagnose"]
