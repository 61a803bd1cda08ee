"""What was opened: runs and recordings by a short name. Requests name runs, never paths, so nothing else is read."""

import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from rldbg.core import Environment, IncompleteDataError, RldbgError, UsageError
from rldbg.ui.opened_run import OpenedRun

_DEPTH = 3
_MAX_RUNS = 1000
_MARKS = ("run.json", "broker.json", "recording")


class Catalogue:
    """The runs below the roots, found again when asked: a job that starts later appears in the list."""

    def __init__(self, roots: Sequence[str], *, layout: str | None = None, tokenizer: str | None = None) -> None:
        self.roots = tuple(roots) or (_home(),)
        self._layout = layout
        self._tokenizer = tokenizer
        self._runs: dict[str, OpenedRun] = {}
        self._lock = threading.Lock()

    def runs(self) -> list[OpenedRun]:
        """All runs, in the order of the roots and of their names."""
        with self._lock:
            known = {run.path: run for run in self._runs.values()}
            for root in self.roots:
                for path in places_below(root):
                    if path not in known and len(self._runs) < _MAX_RUNS:
                        known[path] = self._add(root, path)
            return list(self._runs.values())

    def run(self, name: str) -> OpenedRun:
        """One run by its name; names come from the list."""
        found = self._runs.get(name)
        if found is None:
            self.runs()
            found = self._runs.get(name)
        if found is None:
            raise UsageError(f"unknown run: {name!r}", "go back to the list of runs")
        return found

    def _add(self, root: str, path: str) -> OpenedRun:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.rstrip("/").rpartition("/")[2]).strip("-.") or "run"
        names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, _MAX_RUNS + 2))
        name = next(name for name in names if name not in self._runs)
        run = OpenedRun(name, root, path, layout=self._layout, tokenizer=self._tokenizer)
        self._runs[name] = run
        return run


def places_below(root: str) -> list[str]:
    """The runs and recordings that a root means: itself, or those below it."""
    if "://" in root or not Path(root).expanduser().is_dir():
        return [root]
    folder = Path(root).expanduser()
    if _is_run(folder):
        return [str(folder)]
    runs = list(_runs_below(folder, _DEPTH))
    if runs:
        return runs
    from rldbg.recording import open as open_recording

    try:
        open_recording(folder)
    except RldbgError:
        return [str(child) for child in _folders(folder) if _opens(child)] or [str(folder)]
    return [str(folder)]


def _is_run(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in _MARKS)


def _runs_below(folder: Path, depth: int) -> Iterator[str]:
    for child in _folders(folder):
        if _is_run(child):
            yield str(child)
        elif depth > 1:
            yield from _runs_below(child, depth - 1)


def _folders(folder: Path) -> list[Path]:
    """Real folders only: a link may lead out of what was opened."""
    try:
        children = sorted(folder.iterdir())
    except OSError:
        return []
    return [child for child in children if child.is_dir() and not child.is_symlink() and child.name[0] != "."]


def _opens(folder: Path) -> bool:
    from rldbg.recording import open as open_recording

    try:
        return bool(open_recording(folder).listing.entries)
    except RldbgError:
        return False


def _home() -> str:
    runs = Path(Environment().text("RLDBG_HOME")) / "runs"
    if not runs.is_dir():
        raise IncompleteDataError(
            f"no runs found: no such folder: {runs}", "rldbg ui RUN, or start in the folder of your runs"
        )
    return str(runs)
