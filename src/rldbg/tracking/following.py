"""The steps of a recording, each once, when they are complete; also while the recording grows."""

from collections.abc import Iterator
from pathlib import Path

from rldbg.core import RldbgError, Run
from rldbg.recording import Recording
from rldbg.recording import open as open_recording
from rldbg.tripwire import has_ended


class RecordedSteps:
    """A step is complete when a later one has begun, or when the run has ended."""

    def __init__(self, path: Path, *, layout: str | None = None) -> None:
        self._path = path
        self._layout = layout
        self._seen = -1

    @property
    def ended(self) -> bool:
        places = (self._path, self._path / "recording")
        return any(has_ended(place, None) for place in places) or any(map(_run_ended, (self._path, self._path.parent)))

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


def _run_ended(folder: Path) -> bool:
    """As run.json says; one that is being written, or is of another program, says nothing."""
    try:
        return (folder / "run.json").is_file() and Run(folder).read().get("ended_at") is not None
    except RldbgError:
        return False
