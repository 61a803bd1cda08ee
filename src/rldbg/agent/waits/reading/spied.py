"""Processes as py-spy sees them: places without objects, and native frames."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .kernel import tracing_note
from .objects import Frame, Object
from .process_views import ThreadView

_PY_SPY_S = 20.0


class _SpiedFrame:
    """A frame of which only the place is known."""

    def __init__(self, file: str, line: int, function: str) -> None:
        self.file, self.line, self.function = file, line, function

    def locals(self) -> dict[str, Object]:
        return {}

    def variable(self, name: str) -> Object | None:
        return None


class SpiedProcess:
    """See `process_views.ProcessView`."""

    def __init__(self, pid: int, threads: list[ThreadView]) -> None:
        self.pid = pid
        self._threads = threads

    def threads(self) -> list[ThreadView]:
        return self._threads

    def modules(self) -> Mapping[str, Object]:
        return {}


def spied_threads(pid: int, tool: str, *, native: bool = False) -> list[ThreadView] | str:
    """Threads as py-spy sees them, else the reason why not. Native frames need the process to be paused for a
    moment."""
    if not tool:
        return "py-spy is not installed (pip install py-spy)"
    options = ["--native"] if native else ["--nonblocking"]
    try:
        done = subprocess.run(
            [tool, "dump", "--json", *options, "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=_PY_SPY_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"py-spy: {type(error).__name__}"
    if done.returncode:
        complaint = done.stderr.strip().splitlines()
        refused = "ermission" in done.stderr or "not permitted" in done.stderr
        return tracing_note(pid) if refused else f"py-spy: {complaint[-1] if complaint else 'failed'}"
    found = []
    for thread in json.loads(done.stdout):
        frames: list[Frame] = [
            _SpiedFrame(str(f.get("filename") or ""), int(f.get("line") or 0), str(f["name"]))
            for f in thread.get("frames") or []
        ]
        name = str(thread.get("thread_name") or thread.get("thread_id"))
        ident, number = int(thread.get("thread_id") or 0), int(thread.get("os_thread_id") or 0)
        found.append(ThreadView(name, ident, number, frames, owns_gil=bool(thread.get("owns_gil"))))
    return found


def find_py_spy() -> str:
    beside = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    return beside or shutil.which("py-spy") or ""
