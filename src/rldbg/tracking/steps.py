"""The steps of a recording, each once when it is complete, and their numbers for trackers.

The numbers are metrics, the checks that fail, the gap of rollout and trainer by cause, and noise.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rldbg.analysis import CHECKS, check, compare, metrics_by_step, noise_beside
from rldbg.core import RldbgError, Severity
from rldbg.mismatch import explain_mismatch
from rldbg.recording import Recording, RunLife
from rldbg.recording import open as open_recording

Numbers = dict[str, float]


class RecordedSteps:
    """The complete steps of a recording, also while it grows: a step is complete when a later one has begun or the run
    has ended."""

    def __init__(self, path: Path, *, layout: str | None = None) -> None:
        self._path = path
        self._layout = layout
        self._seen = -1
        self._life = RunLife(path)

    @property
    def ended(self) -> bool:
        return self._life.has_ended

    def new_note(self) -> str:
        """What there is to say about the end of the run, once; else empty."""
        return self._life.new_note()

    def new(self, *, ended: bool) -> Iterator[tuple[Recording, int]]:
        """The recording as it is now, with each step that was completed since the last call."""
        try:
            recording = open_recording(self._path, self._layout)
        except RldbgError:
            if ended:
                raise
            return
        steps = [step for step in recording.steps() if step > self._seen]
        for step in steps if ended else steps[:-1]:
            self._seen = step
            yield recording, step


class StepMeasurements:
    """Measures steps of a recording. What a recording does not hold is left out, never 0."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._noise = _noise_by_step(recording)

    def of(self, step: int) -> Numbers:
        rows = metrics_by_step(self._recording, [step])
        numbers = {name: value for row in rows for name, value in row.items() if name != "step"}
        return numbers | self._checks(step) | self._mismatch(step) | self._noise.get(step, {})

    def _checks(self, step: int) -> Numbers:
        """Per check that applies, how many places it names (0: it holds), and the number of checks that fail."""
        # Integrity is of the whole recording, which is read once per run and not once per step.
        report = check(self._recording, steps=[step], only=[item.id for item in CHECKS])
        bad = (Severity.ERROR, Severity.WARNING)
        places = Counter(finding.id for finding in report.findings if finding.severity in bad)
        named = {f"check/{name}": float(places[name]) for name in (*report.passed, *places)}
        return named | {"checks/failed": float(len(places)), "checks/held": float(len(report.passed))}

    def _mismatch(self, step: int) -> Numbers:
        """The share of the gap per cause; nothing where the log probs of both sides are not recorded."""
        try:
            report = explain_mismatch(self._recording, None, steps=[step])
        except RldbgError:
            return {}
        shares = {f"mismatch/{cause.id}": float(cause.share) for cause in report.causes}
        rest = {"mismatch/unexplained": float(report.unexplained.share)} if report.unexplained else {}
        return shares | rest


def _noise_by_step(recording: Recording) -> dict[int, Numbers]:
    """The largest difference per field to the repetitions that `rldbg rerun --noise` left beside the recording."""
    found: dict[int, Numbers] = {}
    for repetition in noise_beside(recording):
        for field in compare(recording, repetition, jobs=1).fields:
            for (step, _rank, _micro), (size, _count) in field.cells.items():
                numbers = found.setdefault(step, {})
                name = f"noise/{field.kind}.{field.field}"
                numbers[name] = max(numbers.get(name, 0.0), float(size))
    return found
