"""Where Ray on this machine writes the logs of a run: the session folders of its raylets."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

_SESSION = re.compile(r"--session[_-]dir[=\0](?P<folder>[^\0]+)")


def session_folders(run: Path) -> Iterator[Path]:
    """Sessions that the run itself has started: everything in them belongs to it."""
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "raylet":
            try:
                if process.environ().get("RLDBG_RUN") == str(run):
                    yield from _session(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                continue


def worker_logs(pids: Iterable[int]) -> Iterator[Path]:
    """The logs of these workers where they run in a session that was there before the run."""
    for pid in pids:
        try:
            parent = psutil.Process(pid).parent()
            sessions = list(_session(parent)) if parent is not None and parent.name() == "raylet" else []
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
        for session in sessions:
            yield from session.glob(f"logs/*worker-*-{pid}.*")


def _session(raylet: psutil.Process) -> Iterator[Path]:
    if found := _SESSION.search("\0".join(raylet.cmdline())):
        yield Path(found["folder"])
