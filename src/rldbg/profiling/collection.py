"""The end of a profiled run: waits until every profile is written, and says what is there and what is missing.

`manifest.json` beside the profiles holds one entry per worker: worker, rank, node, steps, files with their sizes, the
places where copies lie, and for what is missing the reason.
"""

import json
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import psutil

from rldbg.agent.profiling import OPEN_STATES, WORKERS, Plan, never_began, read_tickets
from rldbg.core import Finding, Severity

_STALE_S = 15.0


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a profiled run left behind."""

    tool: str
    patterns: tuple[str, ...]
    steps: str
    folder: Path
    profiles: tuple[dict[str, Any], ...]
    missing: tuple[dict[str, Any], ...]
    workers: tuple[str, ...]
    unmatched: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"schema_version": 1} | asdict(self) | {"folder": str(self.folder)}

    def write(self) -> Path:
        path = self.folder / "manifest.json"
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        return path

    def findings(self) -> list[Finding]:
        return [*(self._unmatched(pattern) for pattern in self.unmatched), *map(_missing, self.missing)]

    def _unmatched(self, pattern: str) -> Finding:
        there = ", ".join(self.workers) or "none"
        return Finding(
            "profile.unmatched-pattern",
            Severity.WARNING,
            f"pattern {pattern!r}",
            (f"existing workers: {there}",),
            "no worker matches it",
            ("patterns are shell patterns on the whole name: '*policy*', 'dtensor_policy_worker', 'policy/0'",),
        )


def wait_for_profiles(books: Path, *, limit_s: float, say: Callable[[str], None]) -> None:
    """Until no ticket is open any more, or the limit has passed."""
    deadline = time.monotonic() + limit_s
    said = False
    while time.monotonic() < deadline:
        pending = [ticket for ticket in read_tickets(books) if _is_pending(ticket)]
        if not pending:
            return
        if not said:
            names = ", ".join(sorted({str(ticket["worker"]) for ticket in pending}))
            say(f"waiting up to {limit_s:g} s for the profiles of {names}")
            said = True
        time.sleep(0.1)


def make_manifest(plan: Plan, processes: Iterable[dict[str, Any]]) -> Manifest:
    """From the tickets; `processes` are those that the broker knew."""
    folder = Path(plan.folder)
    profiles: list[dict[str, Any]] = []
    missing: list[dict[str, Any]] = []
    tickets = read_tickets(Path(plan.books))
    for ticket in tickets:
        if ticket["state"] == "left out":
            continue
        entry = _entry(ticket, plan)
        (profiles if entry["files"] else missing).append(entry)
    names = _worker_names(Path(plan.books), processes)
    matched = {ticket["pattern"] for ticket in tickets}
    unmatched = [
        pattern
        for pattern in plan.patterns
        if plan.tool != "phases"
        and pattern not in matched
        and not any(fnmatchcase(name, pattern) for pair in names.items() for name in pair if name)
    ]
    shown = tuple(sorted(names))
    return Manifest(
        plan.tool, plan.patterns, plan.window, folder, tuple(profiles), tuple(missing), shown, tuple(unmatched)
    )


def places_by_node(manifest: Manifest) -> dict[str, list[str]]:
    """Where the profiles of each node lie: in our folder, and where the documents look for them."""
    places: dict[str, list[str]] = {}
    for entry in manifest.profiles:
        found = places.setdefault(str(entry["node"]), [])
        for path in [*(file["path"] for file in entry["files"]), *entry["places"]]:
            parent = str(Path(path).parent)
            if parent not in found:
                found.append(parent)
    return places


def _is_pending(ticket: dict[str, Any]) -> bool:
    if ticket["state"] == "armed" and ticket["supervisor"] != ticket["pid"] and ticket["host"] == socket.gethostname():
        return _is_alive(int(ticket["supervisor"]))
    if ticket["state"] not in OPEN_STATES:
        return False
    if ticket["host"] == socket.gethostname():
        return _is_alive(int(ticket["supervisor"]))
    return time.time() - float(ticket["at"]) < _STALE_S


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _entry(ticket: dict[str, Any], plan: Plan) -> dict[str, Any]:
    files = [{"path": path, "size_bytes": Path(path).stat().st_size} for path in ticket["files"] if Path(path).exists()]
    entry = {
        "worker": ticket["worker"],
        "rank": ticket["rank"],
        "node": ticket["host"],
        "pid": ticket["pid"],
        "steps": plan.window,
        "steps_seen": ticket["steps_seen"],
        "files": files,
        "places": [place for place in ticket["places"] if ticket.get("gathered") or Path(place).exists()],
    }
    return entry | {"reason": ticket["reason"] or ("" if files else _reason(ticket, plan))}


def _reason(ticket: dict[str, Any], plan: Plan) -> str:
    state = ticket["state"]
    if state == "armed" and plan.steps is not None:
        return never_began(plan.steps[0], int(ticket["steps_seen"] or 0))
    if state == "armed":
        return "the tool was never started in it" + (": it never imported torch" if plan.tool == "torch" else "")
    if state == "recording":
        return "the process was killed while it was being profiled"
    if state == "finishing":
        return "the process was killed while its profile was being written"
    return "the files that were written no longer exist"


def _worker_names(books: Path, processes: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Every worker's name, with its class where it has a name of its own."""
    names = {file.name.replace("%2F", "/"): file.read_text() for file in sorted((books / WORKERS).glob("*"))}
    for process in processes:
        name = str(process.get("role") or "")
        is_pooled = name == "ray_worker" or (process.get("ray") or {}).get("class")
        if name and not is_pooled:
            names.setdefault(name, "")
    return names


def _missing(entry: dict[str, Any]) -> Finding:
    return Finding(
        "profile.missing",
        Severity.WARNING,
        f"{entry['worker']} (process {entry['pid']} on {entry['node']})",
        (),
        f"no profile: {entry['reason']}",
        (),
    )
