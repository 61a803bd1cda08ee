"""What each process hooked, which of it was called, and what went wrong: one JSON file per process below RUN/hooks.

Written when a module is hooked, at the first call of a function and at its 16th, 256th and so on, at its first
error, and when the process ends: what matters is on disk before anything can kill the process.
"""

import atexit
import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rldbg.agent.profiling import Hook, installed_version
from rldbg.core import Environment
from rldbg.frameworks.base import Framework

# Often enough to be accurate, and too seldom to be expensive.
_WRITTEN_AT = frozenset(16**power for power in range(16))


class HookProof:
    """The file of this process."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._facts: dict[str, Any] = {"versions": {}, "python": sys.executable}
        self._hooks: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        atexit.register(self.write)

    def hooked(self, framework: Framework, hook: Hook, problem: str) -> None:
        package = hook.module.partition(".")[0]
        self._facts["versions"][package] = version_of_module(hook.module)
        self._hooks[f"{hook.module}.{hook.function}"] = {
            "framework": framework.name,
            "records": list(hook.records),
            "problem": problem,
            "calls": 0,
            "errors": 0,
            "seconds": 0.0,
        }

    def called(self, name: str, seconds: float) -> None:
        """A call began, and what its handler did before it took so long."""
        hook = self._hooks[name]
        hook["calls"] += 1
        hook["seconds"] += seconds
        if hook["calls"] in _WRITTEN_AT:
            self.write()

    def took(self, name: str, seconds: float) -> None:
        """Adds the time that the handler took after the call: the cost of recording to the training thread."""
        self._hooks[name]["seconds"] += seconds

    def failed(self, name: str, text: str) -> bool:
        """Whether this is the function's first error."""
        hook = self._hooks[name]
        hook["errors"] += 1
        if hook["errors"] > 1:
            return False
        hook["error"] = text
        self.write()
        return True

    def note(self, **facts: Any) -> None:
        """Further facts about this process."""
        self._facts |= facts
        self.write()

    def write(self) -> None:
        """Renamed into place; where nothing can be written, training continues."""
        if os.getpid() != self._pid:
            return
        host, rank = socket.gethostname(), Environment().text("RANK")
        body = self._facts | {"host": host, "pid": self._pid, "rank": rank, "hooks": self._hooks}
        file = self._folder / f"{host}_{self._pid}.json"
        with self._lock:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                part = file.with_suffix(".part")
                part.write_text(json.dumps(body, default=str), encoding="utf-8")
                part.replace(file)
            except OSError:
                return


def read_proofs(folder: Path) -> list[Mapping[str, Any]]:
    """The files of all processes of a run."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]


def version_of_module(module: str) -> str:
    """The version of the distribution that a module belongs to; empty if it is not known."""
    return installed_version(module.partition(".")[0])
