"""Who holds locks on which files, as the kernel lists them."""

import os
from pathlib import Path


def _rows() -> list[list[str]]:
    """Locks that are held: kind, mode, type, process and file of each."""
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    return [row for row in rows if len(row) > 5 and row[1] != "->"]


def file_lock_holders(pid: int, path: str) -> list[int]:
    """Processes that hold a lock on a file."""
    try:
        facts = Path(f"/proc/{pid}/root{path}").stat()
    except OSError:
        return []
    name = _lock_name(facts)
    return [int(row[4]) for row in _rows() if row[5] == name]


def contested_file(pid: int) -> str:
    """A file that a process has open and another one has locked; empty when there is none."""
    locked = {row[5] for row in _rows() if row[4] != str(pid)}
    for descriptor in sorted(Path(f"/proc/{pid}/fd").iterdir()) if locked else ():
        try:
            facts, target = descriptor.stat(), str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("/") and _lock_name(facts) in locked:
            return target
    return ""


def _lock_name(facts: os.stat_result) -> str:
    """A file as `/proc/locks` names it."""
    return f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
