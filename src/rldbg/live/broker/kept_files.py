"""Files that outlive the broker: breakpoints, messages of log points, stacks at a crash. If a file cannot be written,
debug sessions continue, and `rldbg ps` and `rldbg run` report the file until it can be written again.
"""

import logging
from pathlib import Path

from rldbg.core import write_whole

_log = logging.getLogger(__name__)


class KeptFiles:
    """`problems` has one sentence per file whose last write failed."""

    def __init__(self) -> None:
        self._problems: dict[Path | str, str] = {}

    @property
    def problems(self) -> list[str]:
        return list(self._problems.values())

    def write(self, file: Path, text: str, lost: str, *, mode: int = 0o666) -> None:
        """`lost` says what is missing without the file."""
        try:
            file.parent.mkdir(mode=0o700, exist_ok=True)
            write_whole(file, text, mode=mode)
        except OSError as error:
            self._note(file, lost, error)
        else:
            self._problems.pop(file, None)

    def append(self, file: Path, line: str, lost: str) -> None:
        # What came before may have been cut in the middle.
        torn = "\n" if file in self._problems else ""
        try:
            file.parent.mkdir(mode=0o700, exist_ok=True)
            with open(file, "a", encoding="utf-8") as stream:
                stream.write(f"{torn}{line}\n")
        except OSError as error:
            self._note(file, lost, error)
        else:
            self._problems.pop(file, None)

    def _note(self, file: Path, lost: str, error: OSError) -> None:
        self.report(file, f"{file} could not be written ({error.strerror or error}): {lost}")

    def report(self, about: Path | str, problem: str) -> None:
        """Reports a problem, also one that is not about a file."""
        self._problems[about] = problem
        _log.warning("%s", problem)
