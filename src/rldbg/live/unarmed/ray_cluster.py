"""A Ray cluster without agents: what Ray knows of its actors and tasks, and the stacks of its workers on every node.

A child process joins Ray (`python -m rldbg.live.unarmed.ray_cluster REQUEST`), so that no state stays in this process.
Stacks are taken by one short task per node, which needs no free CPU and nothing installed but Python.
"""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rldbg.core import IncompleteDataError, PrerequisiteError, UnreachableError, join_ray

_WITHOUT = "look at single processes: rldbg stacks --pid PID"
_CHILD_S = 240.0
_NODE_S = 90
_LIMIT = 10_000
# A long job has a hundred thousand of them, and only those matter whose result is on its way.
_FINISHED_LIMIT = 1_000
_IDS = ["actor_id", "owner_id", "job_id", "node_id", "placement_group_id", "worker_id"]
_SIGNAL = re.compile(r"\*\*\* (SIG[A-Z]+) received")
_MOST_READ = 100_000
_STARTED = ("ALIVE", "RESTARTING")
_KEPT = {
    "tasks": "task_id name state func_or_class_name actor_id parent_task_id node_id worker_id worker_pid type job_id "
    "required_resources error_type error_message placement_group_id attempt_number label_selector fallback_strategy "
    "creation_time_ms",
    "actors": "actor_id name class_name state pid node_id required_resources death_cause placement_group_id job_id "
    "num_restarts label_selector fallback_strategy ray_namespace",
    "workers": "worker_id worker_type pid node_id ip is_alive exit_detail",
}


def look_at_ray(
    address: str, *, stacks: bool = True, native: bool = False, with_locals: bool = False, apart_s: float = 0.0
) -> dict[str, Any]:
    """`stacks` of all workers that do something, and Ray's own view: `actors`, `tasks`, `workers`, `nodes`, `notes`."""
    looking = {"native": native, "with_locals": with_locals, "apart_s": apart_s}
    request = {"address": _cluster_address(address), "stacks": stacks, "looking": looking}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "rldbg.live.unarmed.ray_cluster", json.dumps(request)],
            capture_output=True,
            text=True,
            timeout=_CHILD_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"the Ray cluster at {address} did not answer within {_CHILD_S:g} s", _WITHOUT) from None
    answer = _last_answer(done.stdout)
    if answer is None:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        said = words[-1] if words else f"the process that looks ended with exit code {done.returncode} and no answer"
        raise IncompleteDataError(f"looking at the Ray cluster failed: {said}", "try again: it may have just started")
    if "error" in answer:
        kind = PrerequisiteError if answer["kind"] == "PrerequisiteError" else UnreachableError
        raise kind(str(answer["error"]), str(answer["hint"] or _WITHOUT))
    return answer


def _last_answer(output: str) -> dict[str, Any] | None:
    """The last line that is a JSON object: Ray may print lines of its own before and after it."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                return dict(json.loads(line))
            except ValueError:
                continue
    return None


def _cluster_address(address: str) -> str:
    """The cluster's own port: Ray finds it for "auto"; a dashboard is asked for it."""
    if address == "auto" or address.startswith("ray://"):
        return address
    # Loaded only if an address is given.
    from rldbg.live.external_ray.dashboard import Dashboard

    try:
        return Dashboard(address).gcs_address() or address
    except UnreachableError:
        if "://" in address:
            raise
        return address


def dashboard_url(address: str) -> str:
    """The dashboard of this machine's cluster for "auto"; any other address is taken for that of a dashboard."""
    if address != "auto":
        return address
    found = str(look_at_ray(address, stacks=False)["dashboard"])
    if not found:
        raise UnreachableError(
            "this machine's Ray cluster has no dashboard",
            "pip install 'ray[default]', and start Ray with a dashboard; `rldbg stacks --ray auto` needs none",
        )
    return found


def main() -> None:
    """Prints one line of JSON: the view, or the error."""
    request = json.loads(sys.argv[1])
    try:
        ray = join_ray(
            request["address"], otherwise=_WITHOUT, logging_level="error", log_to_driver=False, namespace="rldbg"
        )
        view = _view(ray)
        if request["stacks"]:
            stacks = _stacks(ray, view, request)
            # Ray learns a task's state with a delay, so query it after taking the stacks.
            view = _view(ray) | {"stacks": stacks, "notes": view["notes"]}
    except (PrerequisiteError, UnreachableError) as error:
        view = {"error": error.message, "hint": error.hint, "kind": type(error).__name__}
    sys.stdout.write(f"\n{json.dumps(view, default=str)}\n")
    # Ray may end the process without the interpreter's own end.
    sys.stdout.flush()


def _view(ray: Any) -> dict[str, Any]:
    from ray.util import state

    context = ray.get_runtime_context()
    own = context.get_job_id()
    view: dict[str, Any] = {"notes": [], "nodes": _nodes(ray), "dashboard": _dashboard()}
    view["placement_groups"] = _placement_groups()
    view["jobs"] = _jobs(view["nodes"])
    options = {
        "address": context.gcs_address,
        "limit": _LIMIT,
        "detail": True,
        "raise_on_missing_output": False,
        "timeout": 20,
    }
    for kind, names in _KEPT.items():
        try:
            rows = _listed(state, kind, options) if view["dashboard"] else None
        except Exception as error:  # noqa: BLE001 - the state API raises whatever its server or HTTP client raises
            view["notes"].append(f"Ray's dashboard does not list {kind}: {str(error).splitlines()[0][:200]}")
            rows = None
        found = [{name: _plain(row.get(name)) for name in names.split()} for row in rows or _rows_of(kind)]
        # The newest attempt of a task that Ray tries again is the last one.
        view[kind] = _without_own(sorted(found, key=lambda row: row.get("attempt_number") or 0), own)
    _place_constructors(view)
    _note_signals(view, _logs())
    return view


def _listed(state: Any, kind: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of Ray's state API. Tasks that have not finished are asked for first: of all tasks it would list any."""
    ask = getattr(state, f"list_{kind}")
    if kind != "tasks":
        return [vars(row) for row in ask(**options)]
    finished = {**options, "limit": _FINISHED_LIMIT, "filters": [("state", "=", "FINISHED")]}
    return [vars(row) for row in (*ask(**options, filters=[("state", "!=", "FINISHED")]), *ask(**finished))]


def _place_constructors(view: Mapping[str, Any]) -> None:
    """Ray tells the process of a constructor that runs, but not its node."""
    for row in view["tasks"]:
        if row["worker_pid"] and not row["node_id"]:
            nodes = {worker["node_id"] for worker in view["workers"] if worker["pid"] == row["worker_pid"]}
            row["node_id"] = nodes.pop() if len(nodes) == 1 else None


def _note_signals(view: Mapping[str, Any], logs: Path | None) -> None:
    """Ray does not tell which signal ended the process of an actor; Python's fault handler writes it into the log of
    the worker, with the line. Only logs of this node can be read."""
    for actor in view["actors"]:
        if actor["state"] != "DEAD" or not actor["pid"] or logs is None:
            continue
        for file in logs.glob(f"worker-*-{actor['pid']}.err"):
            said = file.read_text(errors="replace")[-_MOST_READ:]
            signals = _SIGNAL.findall(said)
            _, fatal, trace = said.partition("Fatal Python error")
            if signals and fatal:
                # The threads after the current one only show where they were.
                actor["fatal"] = {"signal": signals[-1], "trace": trace.partition("\nThread ")[0]}


def _logs() -> Path | None:
    node = importlib.import_module("ray._private.worker")._global_node
    folder = Path(node.get_logs_dir_path()) if node is not None else None
    return folder if folder is not None and folder.is_dir() else None


def _without_own(rows: list[dict[str, Any]], job: str) -> list[dict[str, Any]]:
    """Without the tasks that this query itself runs in the cluster."""
    mine = {("job_id", job), ("pid", os.getpid())}
    return [row for row in rows if not mine & {(name, row.get(name)) for name in ("job_id", "pid")}]


def _dashboard() -> str:
    node = importlib.import_module("ray._private.worker")._global_node
    url = str(getattr(node, "webui_url", "") or "")
    return url if "://" in url or not url else f"http://{url}"


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None | dict | list) else str(value)


def _nodes(ray: Any) -> list[dict[str, Any]]:
    free = importlib.import_module("ray._private.state").available_resources_per_node()
    return [
        {
            "node_id": node["NodeID"],
            "host": node["NodeManagerHostname"],
            "ip": node["NodeManagerAddress"],
            "alive": node["Alive"],
            "total": _resources(node["Resources"]),
            "free": _resources(free.get(node["NodeID"]) or {}),
            "labels": dict(node.get("Labels") or {}),
        }
        for node in ray.nodes()
    ]


def _resources(given: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in given.items() if not name.startswith("node:") and "_group_" not in name}


def _stacks(ray: Any, view: dict[str, Any], request: Mapping[str, Any]) -> list[dict[str, Any]]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from rldbg.live.unarmed.travelling import packed

    busy = _busy(view)
    asked = request["looking"] | {"children": True}
    remote = ray.remote(num_cpus=0, max_retries=0)(_look_on_node)
    pending = {}
    for node in view["nodes"]:
        pids = sorted(pid for node_id, pid in busy if node_id == node["node_id"])
        if node["alive"] and pids:
            place = NodeAffinitySchedulingStrategy(node["node_id"], soft=False)
            text = json.dumps(asked | {"pids": pids})
            pending[node["node_id"]] = remote.options(scheduling_strategy=place).remote(packed(), text)
    found = []
    for node in view["nodes"]:
        if node["node_id"] not in pending:
            continue
        try:
            rows = json.loads(ray.get(pending[node["node_id"]], timeout=_NODE_S))
        except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
            reason = str(error).strip().splitlines()
            view["notes"].append(f"no stacks from node {node['host']}: {reason[-1][:200] if reason else type(error)}")
            continue
        found += [row | {"node_id": node["node_id"]} for row in rows]
    return found


def _busy(view: Mapping[str, Any]) -> set[tuple[str, int]]:
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


def _rows_of(kind: str) -> list[dict[str, Any]]:
    """Rows in the form of Ray's state API from the cluster's own tables, which are there without a dashboard too."""
    state = importlib.import_module("ray._private.state").state
    common = importlib.import_module("ray.util.state.common")
    tables = importlib.import_module("ray.core.generated.gcs_pb2")
    accessor = state._connect_and_get_accessor()
    if kind == "tasks":
        finished = importlib.import_module("ray.core.generated.common_pb2").TaskStatus.FINISHED
        events = [tables.TaskEvents.FromString(event) for event in accessor.get_task_events()]
        # Making a row takes a hundred times as long as reading an event.
        ended = {id(event): event.state_updates.state_ts_ns.get(finished, 0) for event in events}
        newest = sorted(filter(None, ended.values()))[-_FINISHED_LIMIT:]
        kept = [event for event in events if not ended[id(event)] or ended[id(event)] >= newest[0]]
        return [common.protobuf_to_task_state_dict(event) for event in kept]
    if kind == "actors":
        found = [tables.ActorTableData.FromString(row) for row in accessor.get_actor_table(None, None)]
        return [common.protobuf_message_to_dict(row, _IDS) for row in found]
    found = [tables.WorkerTableData.FromString(row) for row in accessor.get_worker_table()]
    rows = [common.protobuf_message_to_dict(row, _IDS) for row in found]
    return [row | row["worker_address"] | {"ip": row["worker_address"]["ip_address"]} for row in rows]


def _jobs(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The process of each driver, and the namespace in which its job looks for actors."""
    client = importlib.import_module("ray._private.worker").global_worker.gcs_client
    hosts = {node["ip"]: node["host"] for node in nodes}
    try:
        found = client.get_all_job_info(skip_submission_job_info_field=True, skip_is_running_tasks_field=True)
    except TypeError:
        # Older versions leave that out by themselves.
        found = client.get_all_job_info()
    return [
        {"job_id": row.job_id.hex(), "namespace": row.config.ray_namespace, "pid": row.driver_pid}
        | {"host": hosts.get(row.driver_address.ip_address)}
        for row in found.values()
    ]


def _placement_groups() -> list[dict[str, Any]]:
    """Ray's state API does not tell their strategy."""
    return group_rows(importlib.import_module("ray.util").placement_group_table().values())


def group_rows(groups: Any) -> list[dict[str, Any]]:
    rows = []
    for group in groups:
        bundles = group.get("bundles") or {}
        resources = bundles.values() if isinstance(bundles, Mapping) else bundles
        rows.append(
            {
                "placement_group_id": group["placement_group_id"],
                "name": group.get("name") or "",
                "state": group["state"],
                "bundles": [{"unit_resources": dict(each)} for each in resources],
                "strategy": str(group.get("strategy") or ""),
            }
        )
    return rows


if __name__ == "__main__":
    main()
