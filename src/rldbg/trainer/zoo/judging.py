"""The results of check and compare, reduced to what a score needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rldbg.analysis import Verdict

NO_EFFECT, BELOW_NOISE = "no effect", "below the noise"


def failed_checks(recording: Path) -> tuple[str, ...]:
    """The failed checks, without those of severity info."""
    from rldbg.analysis import check
    from rldbg.core import Severity
    from rldbg.recording import open as open_recording

    report = check(open_recording(recording))
    return tuple(dict.fromkeys(item.id for item in report.findings if item.severity is not Severity.INFO))


def compared(a: Path, b: Path) -> tuple[Verdict, str | None, tuple[str, ...]]:
    """The verdict, the first stage that differs, and the ids of the explanations, best first."""
    from rldbg.analysis import compare
    from rldbg.recording import open as open_recording

    result = compare(open_recording(a), open_recording(b))
    first = result.first_difference
    causes = tuple(dict.fromkeys(item.id for item in result.explanations))
    return result.verdict, None if first is None else first.stage.value, causes


def hidden_by(reference: Path, twin: Path, spoiled: Path) -> str:
    """Why a bug was not found, if it cannot be: it changes nothing in a run that is otherwise the same (`twin`), or
    less than that run, which is clean, differs from the reference by; "" where it should have been found."""
    from rldbg.analysis import compare
    from rldbg.recording import open as open_recording

    a, clean, b = (open_recording(path) for path in (reference, twin, spoiled))
    if compare(clean, b).verdict == "equal":
        return NO_EFFECT
    return BELOW_NOISE if compare(a, b, repetitions=[clean]).verdict != "different" else ""
