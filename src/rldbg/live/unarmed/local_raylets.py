"""The Ray nodes of this machine, by the command lines of their raylets: which clusters run here, and which is meant."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MOST_NAMED = 4
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Raylet:
    """`cluster` is HOST:PORT; `started` counts clock ticks since this machine has started; `is_own` if this user has
    started it; `is_reachable` if its processes have the same numbers here as in its cluster and may be inspected."""

    pid: int
    cluster: str
    node_id: str = ""
    session: str = ""
    started: int = 0
    is_own: bool = True
    is_reachable: bool = False


def local_raylets() -> list[Raylet]:
    """The newest first."""
    found = [each for path in _PROC.glob("[0-9]*") if (each := _raylet(int(path.name))) is not None]
    return sorted(found, key=lambda each: -each.started)


def _raylet(pid: int) -> Raylet | None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        if not words[0].endswith("raylet/raylet"):
            return None
        given = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
        # Versions of Ray write these with either.
        told = {name.replace("-", "_"): value for name, value in given.items()}
        owner = Path(f"/proc/{pid}").stat().st_uid
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        # It has ended.
        return None
    if not told.get("gcs_address"):
        return None
    own, session = os.geteuid(), told.get("session_dir", "")
    reachable = own in (0, owner) and _shares_numbers(pid)
    return Raylet(pid, told["gcs_address"], told.get("node_id", ""), session, started, owner == own, reachable)


def _shares_numbers(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink() == Path("/proc/self/ns/pid").readlink()
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """The cluster of this machine that `auto` means. `address` is empty where there is nothing to choose: Ray finds it;
    else `note` says which one was chosen and how to choose another."""

    address: str = ""
    note: str = ""


def chosen_cluster(raylets: Sequence[Raylet], recorded: str = "") -> ClusterChoice:
    """As Ray does, the one that was recorded by `ray start`, if it runs; else, where Ray would take any of them, the
    newest of this user."""
    by_address: dict[str, Raylet] = {}
    for each in raylets:
        by_address.setdefault(each.cluster, each)
    if len(by_address) < 2:
        return ClusterChoice()
    newest = max(by_address.values(), key=lambda each: (each.is_own, each.started))
    taken = by_address.get(recorded, newest)
    others = [each for each in by_address.values() if each is not taken]
    why = "started by `ray start`" if taken.cluster == recorded else "the newest"
    named = [f"--ray {each.cluster}{_session(each)}" for each in others[:_MOST_NAMED]]
    more = f", and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    count = f"{len(by_address)} Ray clusters run on this machine"
    note = f"{count}; this is {taken.cluster}{_session(taken)}, {why}; for another: {', '.join(named)}{more}"
    return ClusterChoice(taken.cluster, note)


def _session(raylet: Raylet) -> str:
    return f" ({raylet.session})" if raylet.session else ""


def recorded_cluster(variables: Mapping[str, str]) -> str:
    """What `ray start` has recorded last; empty where it did not."""
    folder = variables.get("RAY_TMPDIR") or variables.get("TMPDIR") or "/tmp"
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text().strip()
    except OSError:
        return ""
