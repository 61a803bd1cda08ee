"""Everything that can be wrong with a recording, declared once: how bad it is, why it happens, and what to do."""

from typing import NamedTuple

from rldbg.core import Finding, Severity


class _Known(NamedTuple):
    severity: Severity
    cause: str
    fix: str = ""


_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
_COPY_AGAIN = "copy the file again from where it was written, or record the step again"
_BAD_BYTES = "the bytes changed after they were written: a bad disk, a bad copy, or an edit"
_GONE = "the file was written and is gone: removed, or left out when the recording was copied"
_CUT = "the copy stopped early or the file was changed: it was whole when it got its name"
_LINES_LOST = "the journal was damaged after it was written; what these lines said is lost"
_KILLED = "the process ended before its buffer was on disk (killed, crashed, or out of time at exit)"
_RECORD_AGAIN = "close the recorder before the process ends; after a crash the step must be recorded again"
_NOT_NOTED = "its writer was killed between naming the file and noting it, or its journal was not copied along"
_READS_IS_WHOLE = "copy the journal folder too; a readable file is complete, because files are named only then"
_DROPPED = "the recorder dropped this record instead of blocking or harming training"
_MORE_ROOM = "raise buffer_bytes, record fewer kinds or steps, or use when_full='block'"
_STOPPED = "the recorder stopped itself; this process recorded nothing after that"
_FIX_REASON = "fix what the reason names (disk space, permissions, budget) and record again"
_ALL_WRITTEN = "the process was killed after everything it had recorded was written; nothing is missing"
_FRAMEWORK_IDS = "the framework does not record sample ids for these kinds, so rows can be aligned by content only"
_NO_IDS = "these records have no sample ids, so their rows can be aligned by content only"
_LOST_RANK = "the process died, was filtered out, or its files were lost"
_LOOK_AT_RANK = "look at that rank's log and journal, or copy its files again"
_NOT_COUNTED = "counting all of them would take too long here; the number of samples is a lower bound"
_LOOK_AT_ROLLOUT = "if samples were expected, look at the rollout or the filter before it"

# Some findings have more than one cause: the part after the colon distinguishes them here, and is not part of the id.
_PROBLEMS = {
    "missing-file": _Known(_ERROR, _GONE, _COPY_AGAIN),
    "truncated-file": _Known(_ERROR, _CUT, _COPY_AGAIN),
    "corrupt-file": _Known(_ERROR, _BAD_BYTES, _COPY_AGAIN),
    "corrupt-file:journal": _Known(_ERROR, _LINES_LOST, _COPY_AGAIN),
    "unreadable-file:journal": _Known(_ERROR, "a journal cannot be read"),
    "unjournaled-file": _Known(_WARNING, _NOT_NOTED, _READS_IS_WHOLE),
    "never-written": _Known(_ERROR, _KILLED, _RECORD_AGAIN),
    "never-written:alive": _Known(
        _INFO,
        "its writer is still running and has not written it yet",
        "run rldbg verify again when the run has ended",
    ),
    "dropped": _Known(_WARNING, _DROPPED, _MORE_ROOM),
    "deleted": _Known(_INFO, "removed on purpose by the recorder", "raise keep_last, or pin the steps that must stay"),
    "recorder-stopped": _Known(_ERROR, _STOPPED, _FIX_REASON),
    "unfinished-writer": _Known(_INFO, _ALL_WRITTEN),
    "unfinished-writer:alive": _Known(_INFO, "the process is still running", "wait for the run to end"),
    "unfinished-writer:incomplete": _Known(
        _WARNING,
        "the process was killed or crashed before everything was written",
        "see `never-written` above",
    ),
    "empty-sample-ids": _Known(_WARNING, _NO_IDS, "pass samples= to Recorder.record()"),
    "empty-sample-ids:framework": _Known(
        _INFO, _FRAMEWORK_IDS, "record with rldbg.Recorder to have ids in every record"
    ),
    "empty-record": _Known(_INFO, "these records have no samples", _LOOK_AT_ROLLOUT),
    "missing-rank": _Known(_WARNING, _LOST_RANK, _LOOK_AT_RANK),
    "missing-micro": _Known(_WARNING, _LOST_RANK, _LOOK_AT_RANK),
    "duplicate-record": _Known(
        _WARNING,
        "several files hold this record; reading by key gives the first",
        "remove all but the right one",
    ),
    "unread-files": _Known(_INFO, "these files are not part of the layout and were not read"),
    "samples-uncounted": _Known(_INFO, _NOT_COUNTED),
}


def problem(name: str, where: str, *evidence: str, fix: str = "") -> Finding:
    """The finding of a known problem; `fix` where what to do depends on the case."""
    known = _PROBLEMS[name]
    steps = (fix or known.fix,) if fix or known.fix else ()
    return Finding(name.partition(":")[0], known.severity, where, evidence, known.cause, steps)
