"""A Ray cluster without agents: what Ray knows of its actors and tasks, and the stacks of its workers on every node.

A child process joins Ray (`python -m rldbg.live.unarmed.ray_cluster REQUEST`), so that no state stays in this process.
Stacks are taken by `ray_stacks`.
"""

import importlib
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from rldbg.core import Environment, IncompleteDataError, PrerequisiteError, UnreachableError, join_ray
from rldbg.live.unarmed.local_raylets import ClusterChoice, chosen_cluster, local_raylets, recorded_cluster
from rldbg.live.unarmed.ray_tables import FINISHED_LIMIT, job_rows, placement_groups, rows_of

_log = logging.getLogger(__name__)
_LATER = (
    "try again in a few seconds, or name the cluster itself, which answers earlier: `rldbg stacks --ray auto` on one "
    "of its nodes, or --ray HOST:PORT with the port of its head (6379 unless `ray start --port` says otherwise)"
)
_WITHOUT = "look at single processes: rldbg stacks --pid PID"
_CHILD_S = 240.0
# Ray reports what its tasks do once per second.
_AGAIN, _AGAIN_AFTER_S = 2, 1.5
_LIMIT = 10_000
_SIGNAL = re.compile(r"\*\*\* (SIG[A-Z]+) received")
_MOST_READ = 100_000
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
    """`stacks` of all workers that do something, and Ray's own view: `actors`, `tasks`, `workers`, `nodes`, `notes`;
    `choice` says which cluster of several was taken."""
    looking = {"native": native, "with_locals": with_locals, "apart_s": apart_s}
    choice = _choice(address)
    request = {"address": choice.address or _cluster_address(address), "stacks": stacks, "looking": looking}
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
        hint = str(answer["hint"] or _WITHOUT)
        raise kind(str(answer["error"]), f"{hint}; {choice.note}" if choice.note else hint)
    return answer | {"choice": choice.note}


def _choice(address: str) -> ClusterChoice:
    environment = Environment()
    if address != "auto" or environment.text("RAY_ADDRESS"):
        return ClusterChoice()
    return chosen_cluster(local_raylets(), recorded_cluster(environment.everything()))


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
        found = Dashboard(address).gcs_address()
    except UnreachableError as error:
        if "://" in address:
            reason = f"{error.message}; if the job has only just started, it does not answer yet"
            raise UnreachableError(reason, _LATER) from error
        return address
    if not found:
        raise UnreachableError(f"the Ray dashboard at {address} does not list the nodes of its cluster yet", _LATER)
    return found


def dashboard_url(address: str, tell: Callable[[str], None] = _log.info) -> str:
    """The dashboard of this machine's cluster for "auto"; any other address is taken for that of a dashboard. `tell` is
    given what is to be said of it: which cluster of several it is."""
    if address != "auto":
        return address
    view = look_at_ray(address, stacks=False)
    if view["choice"]:
        tell(str(view["choice"]))
    found = str(view["dashboard"])
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
            view = _with_stacks(ray, view, request["looking"])
    except (PrerequisiteError, UnreachableError) as error:
        view = {"error": error.message, "hint": error.hint, "kind": type(error).__name__}
    sys.stdout.write(f"\n{json.dumps(view, default=str)}\n")
    # Ray may end the process without the interpreter's own end.
    sys.stdout.flush()


def _with_stacks(ray: Any, first: dict[str, Any], looking: Mapping[str, Any]) -> dict[str, Any]:
    """Looks again, where the stacks and what Ray lists do not fit together and may soon."""
    # Only in the process that has joined Ray.
    from rldbg.live.diagnosis.explanation import explain
    from rldbg.live.diagnosis.ray.lasting import is_unclear, mark_lasting, may_be_unclear
    from rldbg.live.diagnosis.ray.view import name_workers
    from rldbg.live.unarmed.ray_stacks import busy_workers, stacks_of

    known = {task["task_id"] for task in first["tasks"]}
    before: list[dict[str, Any]] = []
    begun = 0.0
    for _ in range(1 + _AGAIN):
        if before:
            time.sleep(_AGAIN_AFTER_S)
        notes, again_s = first["notes"][:], time.monotonic() - begun
        begun = time.monotonic()
        stacks = stacks_of(ray, first | {"notes": notes}, looking)
        # Ray learns a task's state with a delay, so query it after taking the stacks.
        view = _view(ray) | {"stacks": stacks, "notes": notes}
        for task in view["tasks"]:
            task["anew"] = task["task_id"] not in known
        mark_lasting(before, stacks, again_s)
        looked_at = {(stack["node_id"], stack["pid"]) for stack in stacks}
        late = any(each not in looked_at for each in busy_workers(view))
        if not looking["apart_s"] or not (late or any(may_be_unclear(each, view) for each in stacks)):
            break
        found = explain(name_workers(deepcopy(stacks), view), ray=view)
        if not is_unclear(found) and not (late and any(cause.kind == "unknown" for cause in found)):
            break
        first, before = view, stacks
    return view


def _view(ray: Any) -> dict[str, Any]:
    from ray.util import state

    context = ray.get_runtime_context()
    own = context.get_job_id()
    view: dict[str, Any] = {"notes": [], "nodes": _nodes(ray), "dashboard": _dashboard()}
    view["placement_groups"] = placement_groups()
    view["jobs"] = job_rows(view["nodes"])
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
        found = [{name: _plain(row.get(name)) for name in names.split()} for row in rows or rows_of(kind)]
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
    finished = {**options, "limit": FINISHED_LIMIT, "filters": [("state", "=", "FINISHED")]}
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


if __name__ == "__main__":
    main()
