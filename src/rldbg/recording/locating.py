"""From what a user names (a run, a dump folder, one kind, one file, a URL) to the files of a recording."""

from pathlib import Path
from typing import Any, NamedTuple

from rldbg.core import IncompleteDataError, Run, UsageError
from rldbg.recording.journal import FOLDER as JOURNAL
from rldbg.recording.tree import LocalTree, Tree


class Located(NamedTuple):
    """The files, which of them are asked for (all under this prefix), and the run they belong to."""

    tree: Tree
    within: str = ""
    run: Run | None = None


def locate(path: Path | str) -> Located:
    """Finds the recording's root; raises when there is nothing of that name."""
    if not str(path):
        raise UsageError("the path is empty", "give a run folder, a dump folder or a dump file")
    if "://" in str(path):
        from rldbg.recording.remote import RemoteTree

        return Located(RemoteTree(str(path)))
    place = Path(path).expanduser()
    if place.is_file():
        return _of_file(place)
    if not place.is_dir():
        raise IncompleteDataError(f"{place}: no such file or folder", "give a run folder, a dump folder or a dump file")
    recording = _recording_of_run(place)
    if recording is not None:
        return Located(LocalTree(recording), run=Run(place))
    if _has_journal(place.resolve().parent) and place.resolve().name != JOURNAL.rstrip("/"):
        root = place.resolve().parent
        return Located(LocalTree(root), f"{place.resolve().name}/", _run_of(root))
    return Located(LocalTree(place), run=_run_of(place))


def _of_file(file: Path) -> Located:
    """One file: with its recording around it when that has a journal, which knows more about the file than it does."""
    root = file.resolve().parent.parent
    if _has_journal(root):
        return Located(LocalTree(root), file.resolve().relative_to(root).as_posix(), _run_of(root))
    return Located(LocalTree(file.parent, (file.name,)), run=_run_of(file.parent))


def _has_journal(folder: Path) -> bool:
    return (folder / JOURNAL).is_dir()


def _recording_of_run(folder: Path) -> Path | None:
    """Where the run in this folder recorded to; None when it is not a run folder."""
    named = _named_recording(folder)
    if named is not None:
        return named
    usual = folder / "recording"
    return usual if usual.is_dir() and not _has_journal(folder) else None


def _named_recording(folder: Path) -> Path | None:
    """The place run.json names under "recording", relative to the run folder; run.json may hold anything else too."""
    if not (folder / "run.json").is_file():
        return None
    value: Any = Run(folder).read().get("recording")
    if not isinstance(value, str) or not value:
        return None
    place = folder / value
    if not place.is_dir():
        moved = folder / place.name  # the run folder was copied from elsewhere, with its recording in it
        if moved.is_dir():
            return moved
        raise IncompleteDataError(
            f"{folder / 'run.json'} says the recording is in {place}, which does not exist",
            "give the folder it was moved to",
        )
    return place


def _run_of(root: Path) -> Run | None:
    """The run a recording belongs to: run.json beside or in it."""
    root = root.resolve()
    for folder in (root, root.parent):
        if (folder / "run.json").is_file() and _recording_of_run(folder) in (None, root, folder / "recording"):
            return Run(folder)
    return None
