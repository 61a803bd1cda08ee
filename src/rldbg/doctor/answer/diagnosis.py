"""The result: the root cause first, its consequences, and where to look if the cause is unknown."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rldbg.core import Finding, redact_text
from rldbg.doctor.clues.none_values import none_in_line
from rldbg.doctor.logs.evidence import LAST_ERROR, STILL_TRYING, Failure, Hit, excerpt, shortened
from rldbg.doctor.logs.failures import is_wrapper
from rldbg.doctor.logs.flight_recorder import FlightReport
from rldbg.doctor.logs.frames import story
from rldbg.doctor.logs.tracebacks import HEADLESS
from rldbg.lazy import shown_by

DiagnosisVerdict = Literal["found", "unknown", "healthy"]
Confidence = Literal["high", "medium", "low"]


_HEADLINE = 240
_ENDS = {
    LAST_ERROR: "the log ends with an error, and no known failure matches it",
    STILL_TRYING: "the log ends while the program is still trying",
}


@dataclass(frozen=True, slots=True)
class Quote:
    """A line of a log, as evidence."""

    file: str
    line: int
    text: str
    speaker: str = ""
    time: str = ""

    @classmethod
    def of(cls, hit: Hit) -> "Quote":
        stamp = hit.place.stamp
        text = redact_text(excerpt(hit.text, hit.matched, 600))
        return cls(hit.place.file, hit.place.line, text, str(hit.place.speaker), str(stamp) if stamp else "")

    def to_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"file": self.file, "line": self.line, "text": self.text}
        return body | {key: value for key, value in (("process", self.speaker), ("time", self.time)) if value}


@dataclass(frozen=True, slots=True)
class Cause:
    """A known failure seen in the logs, as root cause or as fallout."""

    id: str
    title: str
    title_zh: str
    confidence: Confidence
    why: tuple[str, ...]
    """The reasons for the confidence."""
    evidence: tuple[Quote, ...]
    count: int
    cause: str
    fix: tuple[str, ...]
    sources: tuple[str, ...] = ()
    detail: str = ""
    """What the exception says about this run: whose call, how much memory, which address."""
    words: str = ""
    """The exception, or the line, in its own words."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"evidence": [quote.to_dict() for quote in self.evidence]}


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One look at a machine."""

    id: str
    title: str
    status: Literal["pass", "warn", "fail", "skip"]
    reason: str
    fix: tuple[str, ...] = ()
    node: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "node" or value}


@shown_by("diagnosis")
@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the logs, the machine and the flight recorder say together."""

    verdict: DiagnosisVerdict
    root_causes: tuple[Cause, ...] = ()
    fallout: tuple[Cause, ...] = ()
    first_error: Failure | None = None
    """The first unknown exception of the earliest failing process."""
    next: tuple[str, ...] = ()
    probes: tuple[ProbeResult, ...] = ()
    notes: tuple[Cause, ...] = ()
    """Warnings and harmless look-alikes seen on the way."""
    findings: tuple[Finding, ...] = ()
    """What is wrong with the logs themselves, and what the flight recorder shows."""
    flights: tuple[FlightReport, ...] = ()
    """What torch's flight recorder says about the collectives."""
    read_files: int = 0
    read_bytes: int = 0
    engine: str = ""
    outlived: str = ""
    """The title of a failure that the program outlived; what is only warned of has not happened."""
    earlier_runs: int = 0
    """How many runs the logs have before the one that is diagnosed."""
    also_says: tuple[Quote, ...] = ()
    """Lines elsewhere in the logs that have a rare name of an exception whose words alone do not say why."""
    unfinished: str = ""
    """Where nothing failed: the progress bar in the middle of which a log ends."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "verdict": self.verdict,
            "root_causes": [cause.to_dict() for cause in self.root_causes],
            "fallout": [cause.to_dict() for cause in self.fallout],
            "first_error": failure_to_dict(self.first_error) if self.first_error else None,
            "also_says": [quote.to_dict() for quote in self.also_says],
            "probes": [probe.to_dict() for probe in self.probes],
            "next": list(self.next),
            "notes": [cause.to_dict() for cause in self.notes],
            "findings": [finding.to_dict() for finding in self.findings],
            "flight_recorder": [report.to_dict() for report in self.flights],
            "earlier_runs": self.earlier_runs,
            "read": {"files": self.read_files, "bytes": self.read_bytes, "engine": self.engine},
        }

    @property
    def headline(self) -> str:
        runs = self.earlier_runs + 1
        return self._words + (f" (last of {runs} runs in these logs)" if self.earlier_runs else "")

    @property
    def _words(self) -> str:
        if self.verdict == "found":
            cause = self.root_causes[0]
            said = cause.detail.partition(";")[0].rstrip(".") or cause.words
            sure = "root cause" if cause.confidence == "high" else "likely cause"
            return f"{sure}: {cause.title} ({cause.id})" + (f": {said}" if said else "")
        if self.unfinished:
            return f"no failure found, but the log ends in the middle of a progress bar ({self.unfinished})"
        if self.verdict == "healthy" and self.outlived:
            return f"no failure found; the program went on after a line that can mean: {self.outlived}"
        if self.verdict == "healthy":
            return "no failure found" if self.read_bytes or self.flights else "nothing was read: the logs are empty"
        held_up = sorted({rank for report in self.flights for rank in report.culprits})
        said = next((f": {cause.detail}" for cause in self.fallout[:1] if cause.detail), "")
        words = "the cause is not in these logs" + (f", only: {self.fallout[0].title}{said}" if self.fallout else "")
        if self.first_error is not None and self.first_error.kind in _ENDS:
            words = f"{_ENDS[self.first_error.kind]}: {self.first_error.message[:200]}"
        elif self.first_error is not None and self.first_error.kind == "KeyboardInterrupt" and not self.fallout:
            words = (
                "the program was interrupted (KeyboardInterrupt: Ctrl-C, SIGINT or a server's SIGTERM); "
                "nothing else failed in these logs"
            )
        elif self.first_error is not None and not is_wrapper(self.first_error):
            who = str(self.first_error.place.speaker)
            begins = "the failure begins with " + shortened(self.first_error.headline, _HEADLINE)
            is_cut = self.first_error.kind == HEADLESS
            words = ("the log is cut off inside a traceback" if is_cut else begins) + (f" in {who}" if who else "")
            words += f": {told}" if (told := none_in_line(self.first_error)) else ""
            words += f", {told}" if (told := story(self.first_error)) else ""
            known = next((cause.title for cause in self.fallout if cause.id in self.first_error.known_as), "")
            words += f"; its cause is not in these logs, only: {known}" if known else "; no known failure matches it"
        return words + (f"; ranks {held_up} blocked the others" if held_up else "")


def failure_to_dict(failure: Failure) -> dict[str, Any]:
    return {
        "type": failure.kind,
        "message": failure.message,
        "more": list(failure.more),
        "file": failure.place.file,
        "line": failure.place.line,
        "process": str(failure.place.speaker),
        "time": str(failure.place.stamp) if failure.place.stamp else "",
        "traceback": list(failure.frames),
        "count": failure.count,
    }
