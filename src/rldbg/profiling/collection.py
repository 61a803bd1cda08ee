"""The end of a profiled run: wait until every profile is written, and list the files and what is missing.

`manifest.json` next to the profiles holds one entry per worker: worker, rank, node, steps, files with their sizes and
copies, and the reason for each missing profile.
"""

import json
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rldbg.agent.profiling import OPEN_STATES, WORKERS, Plan, never_began, read_status_files
from rldbg.core import Finding, Severity, is_running

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


def wait_for_profiles(state_folder: Path, *, limit_s: float, say: Callable[[str], None]) -> None:
    """Waits until no profile is open, or the limit has passed."""
    deadline = time.monotonic() + limit_s
    said = False
    while time.monotonic() < deadline:
        pending = [status for status in read_status_files(state_folder) if _is_pending(status)]
        if not pending:
            return
        if not said:
            names = ", ".join(sorted({str(status["worker"]) for status in pending}))
            say(f"waiting up to {limit_s:g} s for the profiles of {names}")
            said = True
        time.sleep(0.1)


def make_manifest(plan: Plan, processes: Iterable[dict[str, Any]]) -> Manifest:
    """Builds the manifest from the status files; `processes` are those that the broker knew."""
    folder = Path(plan.folder)
    profiles: list[dict[str, Any]] = []
    missing: list[dict[str, Any]] = []
    status_files = read_status_files(Path(plan.state_folder))
    for status in status_files:
        if status["state"] == "left out":
            continue
        entry = _entry(status, plan)
        (profiles if entry["files"] else missing).append(entry)
    names = _worker_names(Path(plan.state_folder), processes)
    matched = {status["pattern"] for status in status_files}
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
    """Where the profiles of each node are: in the run folder, and in Ray's and the job's log folders."""
    places: dict[str, list[str]] = {}
    for entry in manifest.profiles:
        found = places.setdefault(str(entry["node"]), [])
        for path in [*(file["path"] for file in entry["files"]), *entry["places"]]:
            parent = str(Path(path).parent)
            if parent not in found:
                found.append(parent)
    return places


def _is_pending(status: dict[str, Any]) -> bool:
    if status["state"] == "armed" and status["supervisor"] != status["pid"] and status["host"] == socket.gethostname():
        return is_running(int(status["supervisor"]))
    if status["state"] not in OPEN_STATES:
        return False
    if status["host"] == socket.gethostname():
        return is_running(int(status["supervisor"]))
    return time.time() - float(status["at"]) < _STALE_S


def _entry(status: dict[str, Any], plan: Plan) -> dict[str, Any]:
    files = [{"path": path, "size_bytes": Path(path).stat().st_size} for path in status["files"] if Path(path).exists()]
    entry = {
        "worker": status["worker"],
        "rank": status["rank"],
        "node": status["host"],
        "pid": status["pid"],
        "steps": plan.window,
        "steps_seen": status["steps_seen"],
        "files": files,
        "places": [place for place in status["places"] if status.get("gathered") or Path(place).exists()],
    }
    return entry | {"reason": status["reason"] or ("" if files else _reason(status, plan))}


def _reason(status: dict[str, Any], plan: Plan) -> str:
    state = status["state"]
    if state == "armed" and plan.steps is not None:
        return never_began(plan.steps[0], int(status["steps_seen"] or 0))
    if state == "armed":
        return "the tool was never started in it" + (": it never imported torch" if plan.tool == "torch" else "")
    if state == "recording":
        return "the process was killed while it was being profiled"
    if state == "finishing":
        return "the process was killed while its profile was being written"
    return "the files that were written no longer exist"


def _worker_names(state_folder: Path, processes: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Every worker's name, with its class where it has a name of its own."""
    names = {file.name.replace("%2F", "/"): file.read_text() for file in sorted((state_folder / WORKERS).glob("*"))}
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
