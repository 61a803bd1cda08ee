"""Copies what processes wrote on nodes that do not see the run folder, through Ray, when the command has ended.

Such a process writes into a folder of the same name on its own node. `python -m rldbg.profiling.remote_collection`
joins the cluster, asks every node whether it sees the run's plan, and copies from those that do not: status files, the
profiles they name, and phases, with the node's clock measured against this machine's. It copies in chunks, so that no
file has to fit into memory. The files on the nodes stay where they are.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rldbg.agent.profiling import CLUSTER, OPEN_STATES, PHASES, STATUS_FILES, Plan, fresh_path
from rldbg.core import Environment, join_ray
from rldbg.profiling.request import PLAN_FILE

_PIECE_BYTES = 16 << 20
_JOIN_S = 60.0
_STALE_S = 15.0
_PINGS = 5


def bring_from_nodes(plan: Plan, *, limit_s: float, say: Callable[[str], None]) -> None:
    """Does nothing for a run without Ray, on one node, or whose cluster has ended with it: then all lies here."""
    state_folder = Path(plan.state_folder)
    try:
        cluster = json.loads((state_folder / CLUSTER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if cluster["nodes"] < 2 or not _answers(cluster["address"]):
        return
    words = [cluster["address"], plan.state_folder, plan.folder, str(limit_s)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "rldbg.profiling.remote_collection", *words],
            env=Environment().everything(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s + _JOIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say(f"the other nodes were not checked: the cluster did not answer within {limit_s + _JOIN_S:g} s")
        return
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        say(f"the other nodes were not checked: {reason}")
    for line in done.stdout.splitlines():
        if line.startswith("copied "):
            say(line)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2.0).close()
    except (OSError, ValueError):
        return False
    return True


@dataclass(slots=True)
class RemoteNode:
    """One node of the cluster, asked by tasks that run there."""

    ray: Any
    identifier: str
    name: str
    fetched: int = 0
    size_bytes: int = 0

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(self.identifier, soft=False)
        task = self.ray.remote(num_cpus=0)(function).options(scheduling_strategy=place, max_retries=0)
        return self.ray.get(task.remote(*arguments))

    def listing(self, state_folder: Path) -> dict[str, Any] | None:
        """Status files and phases over there; None where the node sees the same folder as we do."""
        found: dict[str, Any] | None = self.call(_list_there, str(state_folder), PLAN_FILE, STATUS_FILES, PHASES)
        return found

    def bring(self, path: str, target: Path) -> None:
        """A file, to be seen here only when it is whole."""
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.part")
        with open(temporary, "wb") as file:
            while piece := self.call(_read_there, path, file.tell(), _PIECE_BYTES):
                file.write(piece)
            self.size_bytes += file.tell()
        temporary.replace(target)
        self.fetched += 1

    def clock(self) -> dict[str, int]:
        """This machine's clock less the node's, in nanoseconds; known to half of the round trip."""
        measured = []
        for _ in range(_PINGS):
            before = time.time_ns()
            theirs = int(self.call(_clock_there))
            after = time.time_ns()
            measured.append((after - before, (before + after) // 2 - theirs))
        round_trip, offset = min(measured)
        return {"offset_ns": offset, "round_trip_ns": round_trip}


def _list_there(state_folder: str, plan: str, status_files: str, phases: str) -> dict[str, Any] | None:
    import json
    import time
    from pathlib import Path

    folder = Path(state_folder)
    if (folder / plan).exists() or not folder.is_dir():
        return None
    read = [(file.name, json.loads(file.read_text())) for file in sorted((folder / status_files).glob("*.json"))]
    return {"status": read, "phases": [str(file) for file in (folder / phases).glob("*.jsonl")], "now": time.time()}


def _read_there(path: str, start: int, length: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(length)


def _clock_there() -> int:
    import time

    return time.time_ns()


def _remote_nodes(ray: Any) -> Iterator[RemoteNode]:
    for node in ray.nodes():
        if node["Alive"]:
            yield RemoteNode(ray, node["NodeID"], node["NodeManagerHostname"])


def _when_written(node: RemoteNode, state_folder: Path, deadline: float) -> dict[str, Any] | None:
    """The listing, once no profile over there is being written any more."""
    while (found := node.listing(state_folder)) is not None and time.monotonic() < deadline:
        open_ones = [
            status
            for _, status in found["status"]
            if status["state"] in OPEN_STATES and found["now"] - status["at"] < _STALE_S
        ]
        if not open_ones:
            break
        time.sleep(1.0)
    return found


def _bring_all(node: RemoteNode, found: dict[str, Any], state_folder: Path, folder: Path) -> None:
    for name, status in found["status"]:
        brought = []
        for path in status["files"]:
            target = fresh_path(folder / Path(path).name)
            node.bring(path, target)
            brought.append(str(target))
        there = [*status["places"], *status["files"]]
        status |= {"files": brought, "places": there, "gathered": True}
        (state_folder / STATUS_FILES).mkdir(parents=True, exist_ok=True)
        (state_folder / STATUS_FILES / name).write_text(json.dumps(status), encoding="utf-8")
    clock = json.dumps({"clock": node.clock()}) + "\n" if found["phases"] else ""
    for path in found["phases"]:
        target = state_folder / PHASES / Path(path).name
        node.bring(path, target)
        with target.open("a", encoding="utf-8") as file:
            file.write("\n" + clock)


def main(address: str, state_folder: Path, folder: Path, limit_s: float) -> None:
    ray = join_ray(address, otherwise="copy its files yourself", logging_level="error", log_to_driver=False)
    deadline = time.monotonic() + limit_s
    for node in _remote_nodes(ray):
        found = _when_written(node, state_folder, deadline)
        if found is not None:
            _bring_all(node, found, state_folder, folder)
            sys.stdout.write(f"copied {node.fetched} files ({node.size_bytes} bytes) from node {node.name}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
