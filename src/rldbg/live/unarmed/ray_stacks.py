"""The stacks of a Ray cluster's workers: those of this machine are read here, those of other nodes by one short task
per node, which needs no free CPU and nothing installed but Python."""

import importlib
import json
import os
from collections.abc import Mapping
from typing import Any

from rldbg.agent.waits import look
from rldbg.live.unarmed.local_raylets import local_raylets

_NODE_S = 90
_STARTED = ("ALIVE", "RESTARTING")


def stacks_of(ray: Any, view: dict[str, Any], looking: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of all workers that do something. What could not be seen is added to the notes of the view."""
    pids: dict[str, list[int]] = {}
    for node_id, pid in sorted(busy_workers(view)):
        pids.setdefault(node_id, []).append(pid)
    nodes = [node for node in view["nodes"] if node["alive"] and node["node_id"] in pids]
    asked = {**looking, "children": True}
    here = _own_node(ray)
    pending = {
        node["node_id"]: _ask(ray, node["node_id"], asked | {"pids": pids[node["node_id"]]})
        for node in nodes
        if node["node_id"] != here
    }
    found = []
    for node in sorted(nodes, key=lambda each: each["node_id"] in pending):
        try:
            # Starting a worker of Ray takes longer than looking.
            rows = look(pids[here], **asked) if node["node_id"] == here else _answer(ray, pending[node["node_id"]])
        except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
            reason = str(error).strip().splitlines()
            view["notes"].append(f"no stacks from node {node['host']}: {reason[-1][:200] if reason else type(error)}")
            continue
        found += [row | {"node_id": node["node_id"]} for row in rows]
    return found


def _ask(ray: Any, node_id: str, request: Mapping[str, Any]) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from rldbg.live.unarmed.travelling import packed

    remote = ray.remote(num_cpus=0, max_retries=0)(_look_on_node)
    place = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return remote.options(scheduling_strategy=place).remote(packed(), json.dumps(request))


def _answer(ray: Any, reference: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(ray.get(reference, timeout=_NODE_S))
    return rows


def _own_node(ray: Any) -> str:
    """The node that this machine is, if its processes can be inspected from here as well as by a worker of Ray."""
    if importlib.import_module("ray._private.worker")._global_node is None:
        return ""
    own = str(ray.get_runtime_context().get_node_id())
    return own if any(each.node_id == own and each.is_reachable for each in local_raylets()) else ""


def busy_workers(view: Mapping[str, Any]) -> set[tuple[str, int]]:
    """Workers with an actor or a running task, and drivers."""
    found = {(row["node_id"], row["pid"]) for row in view["actors"] if row["state"] in _STARTED and row["pid"]}
    found |= {(row["node_id"], row["worker_pid"]) for row in view["tasks"] if row["state"] == "RUNNING"}
    own = os.getpid()
    for row in view["workers"]:
        if row["worker_type"] == "DRIVER" and row["is_alive"] and row["pid"] != own:
            found.add((row["node_id"], row["pid"]))
    return {(node, int(pid)) for node, pid in found if node and pid}


def _look_on_node(data: bytes, request: str) -> str:
    """Runs on another node, where rldbg need not be installed: it uses nothing but the standard library."""
    import os
    import subprocess
    import sys
    import tempfile

    handle, path = tempfile.mkstemp(suffix=".pyz")
    os.write(handle, data)
    os.close(handle)
    try:
        done = subprocess.run([sys.executable, path, request], capture_output=True, text=True, timeout=80, check=False)
    finally:
        os.remove(path)  # noqa: PTH107 - only what every node has
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout
