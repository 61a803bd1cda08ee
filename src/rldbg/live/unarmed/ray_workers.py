"""All workers of a Ray cluster, busy or not, as its dashboard lists them."""

from typing import Any

from rldbg.agent import snake_case
from rldbg.live.external_ray.dashboard import Dashboard

_WAITING = ("PENDING_CREATION", "DEPENDENCIES_UNREADY", "RESTARTING")


def ray_workers(url: str) -> list[dict[str, Any]]:
    """Drivers, actors (also those that cannot start yet), workers with a task, and idle ones, in this order."""
    dashboard = Dashboard(url)
    hosts = {row["node_id"]: str(row.get("node_name") or row.get("node_ip")) for row in dashboard.rows("nodes")}
    running: dict[Any, list[dict[str, Any]]] = {}
    for task in dashboard.rows("tasks", ("state", "=", "RUNNING")):
        running.setdefault(task.get("worker_id"), []).append(task)
    actors = dashboard.rows("actors")
    alive = {(row.get("node_id"), row.get("pid")): row for row in actors if row["state"] == "ALIVE"}
    found = [_pending(actor) for actor in actors if actor["state"] in _WAITING]
    for row in dashboard.rows("workers", ("is_alive", "=", "True")):
        if row.get("worker_type") in ("WORKER", "DRIVER"):
            actor = alive.get((row.get("node_id"), row.get("pid")))
            found.append(_worker(row, actor, running.get(row["worker_id"], []), hosts))
    order = ("driver", "actor", "task", "idle")
    return sorted(found, key=lambda row: (order.index(row["kind"]), row["who"], row["pid"] or 0))


def _name(actor: dict[str, Any]) -> str:
    return str(actor.get("name") or "") or snake_case(str(actor.get("class_name")).rpartition(".")[2])


def _pending(actor: dict[str, Any]) -> dict[str, Any]:
    asked = ", ".join(f"{amount:g} {name}" for name, amount in (actor.get("required_resources") or {}).items())
    state = str(actor["state"]).lower().replace("_", " ")
    return {
        "who": _name(actor),
        "kind": "actor",
        "state": state,
        "task": "",
        "asks_for": asked,
        "host": "",
        "pid": None,
    }


def _worker(
    row: dict[str, Any], actor: dict[str, Any] | None, tasks: list[dict[str, Any]], hosts: dict[str, str]
) -> dict[str, Any]:
    names = sorted(str(task["name"]) for task in tasks if task.get("type") != "DRIVER_TASK")
    kind = "driver" if row["worker_type"] == "DRIVER" else "actor" if actor else "task" if names else "idle"
    paused = (row.get("num_paused_threads") or 0) > 0
    busy = kind == "driver" or bool(names)
    return {
        "who": _name(actor)
        if actor
        else names[0]
        if names and kind == "task"
        else "driver"
        if kind == "driver"
        else "-",
        "kind": kind,
        "state": "paused" if paused else "running" if busy else "idle",
        "task": ", ".join(dict.fromkeys(names)) if kind != "driver" else "",
        "asks_for": "",
        "host": hosts.get(str(row.get("node_id")), str(row.get("ip"))),
        "pid": int(row.get("pid") or 0),
    }
