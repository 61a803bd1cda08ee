"""Locks of files, as the kernel lists them: who holds one, and which file of a process another has locked."""

import os
from pathlib import Path

from .kernel import process_facts, read_text


def file_lock_holders(pid: int, path: str) -> list[int]:
    """Processes that hold a lock on a file; a path that is not absolute begins at the process's own folder."""
    try:
        facts = Path(f"/proc/{pid}/root{path}" if path.startswith("/") else f"/proc/{pid}/cwd/{path}").stat()
    except OSError:
        return []
    name = _lock_name(facts)
    takers = [int(row[4]) for row in _held_locks() if row[5] == name]
    # Who took it may have ended or closed the file: those that inherited it keep the lock.
    keepers = _keeping_open(name) if takers else []
    hidden = [pid for pid in takers if process_facts(pid) and not os.access(f"/proc/{pid}/fd", os.R_OK)]
    return list(dict.fromkeys([*keepers, *hidden]))


def contested_file(pid: int, *, own: bool = False) -> str:
    """A file that a process has open and another one (with `own`, any) has locked; empty when there is none."""
    locked = {row[5] for row in _held_locks() if own or row[4] != str(pid)}
    for descriptor in sorted(Path(f"/proc/{pid}/fd").iterdir()) if locked else ():
        try:
            facts, target = descriptor.stat(), str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("/") and _lock_name(facts) in locked:
            return target
    return ""


def _held_locks() -> list[list[str]]:
    """Locks that are held: kind, mode, type, process and file of each."""
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    return [row for row in rows if len(row) > 5 and row[1] != "->"]


def _keeping_open(name: str) -> list[int]:
    """Processes with an open file that has a lock, by the name of the file in `/proc/locks`."""
    found = []
    for pid in (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        try:
            descriptors = [each.name for each in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        files = [each for each in descriptors if _name_of_open(pid, each) == name]
        if any("lock:" in read_text(f"/proc/{pid}/fdinfo/{each}") for each in files):
            found.append(pid)
    return found


def _name_of_open(pid: int, descriptor: str) -> str:
    try:
        return _lock_name(Path(f"/proc/{pid}/fd/{descriptor}").stat())
    except OSError:
        # It was closed meanwhile.
        return ""


def _lock_name(facts: os.stat_result) -> str:
    """A file as `/proc/locks` names it."""
    return f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
