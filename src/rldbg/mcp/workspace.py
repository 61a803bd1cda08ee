"""What the tools may read: the runs that were opened, by name, and files below the folders that were opened."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from rldbg.core import IncompleteDataError, UnreachableError, UsageError
from rldbg.ui import Catalogue, OpenedRun


class Workspace:
    """Runs are found again when asked, so one that starts later appears. Nothing outside the roots is read."""

    def __init__(self, roots: Sequence[str] = (), *, allow_control: bool = False) -> None:
        self._roots = tuple(roots)
        self.allow_control = allow_control

    @cached_property
    def _catalogue(self) -> Catalogue:
        """Made when first asked: an agent may start the server before there is any run."""
        return Catalogue(self._roots)

    def runs(self) -> list[OpenedRun]:
        return self._catalogue.runs()

    def run(self, name: str) -> OpenedRun:
        """By name, or by the path under which it was opened."""
        runs = self.runs()
        for run in runs:
            if name == run.name or Path(name).expanduser().absolute() == Path(run.path).expanduser().absolute():
                return run
        names = ", ".join(run.name for run in runs[:20]) or "none"
        raise UsageError(f"unknown run: {name!r}", f"call `list`; runs: {names}")

    def live(self, name: str) -> Path:
        """The folder of a run whose processes can be asked."""
        from rldbg.live import is_alive

        run = self.run(name)
        if run.folder is None or not is_alive(run.folder):
            raise UnreachableError(f"run {name} is not running", "call `list`: it shows which runs are live")
        return run.folder

    def file(self, path: str) -> Path:
        """A log file or folder below a root, or below the folder in which the server was started."""
        place = Path(path).expanduser().resolve()
        inside = [Path.cwd(), *(Path(root).expanduser() for root in self._roots if "://" not in root)]
        if not any(place.is_relative_to(root.resolve()) for root in inside):
            raise UsageError(f"{path} is outside the opened folders", "start the server with its folder: rldbg mcp DIR")
        if not place.exists():
            raise IncompleteDataError(f"{path}: no such file or folder", "give a log file or a folder of logs")
        return place
