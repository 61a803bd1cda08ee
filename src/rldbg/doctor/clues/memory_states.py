"""Which call was under way when the memory of a paused engine or actor was released or taken back once too often."""

import re
from collections.abc import Sequence

from rldbg.doctor.clues.told import Told
from rldbg.doctor.logs.evidence import Hit, LogEvidence
from rldbg.doctor.logs.frames import short

ENTRY = "tms-driver-error"
_CHANGES_STATE = re.compile(
    r" in (?:_?(?:offload|onload|sleep|wake_up|pause|resume|release_memory|resume_memory)\w*"
    r"|\w+_(?:offload|onload|sleep))$"
)
_SHOWN = 3


def told_of_memory(hits: Sequence[Hit], evidence: LogEvidence) -> Told | None:
    """The functions of a stack in these logs that put something to sleep, or wake it, the outermost first."""
    said = hits[0].text[hits[0].text.find(hits[0].matched) :].strip()
    for failure in evidence.failures:
        calls = [short(frame) for frame in failure.frames if _CHANGES_STATE.search(frame)]
        if calls:
            return Told(f"{said}; the call under way was {', then '.join(calls[:_SHOWN])}.")
    return None
