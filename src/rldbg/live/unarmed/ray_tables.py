"""What Ray's own tables tell: placement groups; where there is no dashboard, actors and drivers too, but no tasks."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

NOTE = "Ray has no dashboard here and does not list its tasks: start it with include_dashboard=True for full sentences"
Row = dict[str, Any]


def rows_of(kind: str, nodes: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows in the form of Ray's state API, as far as they are known; `nodes` tell on which node an address is."""
    state = importlib.import_module("ray._private.state")
    if kind == "actors":
        return actor_rows(state.actors().values())
    if kind == "workers":
        return driver_rows(state.jobs(), nodes)
    return []


def placement_groups() -> list[Row]:
    """Ray's state API does not tell their strategy."""
    return group_rows(importlib.import_module("ray.util").placement_group_table().values())


def actor_rows(actors: Any) -> list[Row]:
    return [
        {
            "actor_id": actor["ActorID"],
            "name": actor.get("Name") or "",
            "class_name": actor.get("ActorClassName") or "",
            "state": actor["State"],
            "pid": actor.get("Pid") or 0,
            "node_id": actor["Address"]["NodeID"],
            "job_id": actor["JobID"],
            "required_resources": {},
            "death_cause": None,
            "placement_group_id": None,
        }
        for actor in actors
    ]


def driver_rows(jobs: Any, nodes: Sequence[Mapping[str, Any]]) -> list[Row]:
    by_address = {node["ip"]: node["node_id"] for node in nodes if node["alive"]}
    return [
        {
            "worker_id": f"driver-{job['JobID']}",
            "worker_type": "DRIVER",
            "pid": job["DriverPid"],
            "node_id": by_address.get(job["DriverIPAddress"], ""),
            "ip": job["DriverIPAddress"],
            "is_alive": not job.get("IsDead"),
            "exit_detail": "",
        }
        for job in jobs
    ]


def group_rows(groups: Any) -> list[Row]:
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
