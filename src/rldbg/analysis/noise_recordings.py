"""Repetitions of a recording's steps, made by `rldbg rerun --noise`, in a folder next to it."""

from pathlib import Path

from rldbg.recording import Recording
from rldbg.recording import open as open_recording


def noise_folder(recording: Recording) -> Path:
    """`RUN.noise` next to RUN."""
    place = Path(recording.title)
    return place.with_name(f"{place.name}.noise")


def noise_beside(recording: Recording) -> list[Recording]:
    """The repetitions that lie there, in order of their names; none for recordings that are not on this machine."""
    folder = noise_folder(recording)
    return [open_recording(item) for item in sorted(folder.iterdir())] if folder.is_dir() else []
