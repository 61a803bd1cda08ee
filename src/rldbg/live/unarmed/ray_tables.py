"""Rows of Ray's own tables: tasks, actors, workers, jobs and placement groups, which are there without a dashboard."""

import importlib
from collections.abc import Mapping
from typing import Any

# A long job has a hundred thousand of them, and only those matter whose result is on its way.
FINISHED_LIMIT = 1_000
_IDS = ["actor_id", "owner_id", "job_id", "node_id", "placement_group_id", "worker_id"]


def rows_of(kind: str) -> list[dict[str, Any]]:
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
        newest = sorted(filter(None, ended.values()))[-FINISHED_LIMIT:]
        kept = [event for event in events if not ended[id(event)] or ended[id(event)] >= newest[0]]
        return [common.protobuf_to_task_state_dict(event) for event in kept]
    if kind == "actors":
        found = [tables.ActorTableData.FromString(row) for row in accessor.get_actor_table(None, None)]
        return [common.protobuf_message_to_dict(row, _IDS) for row in found]
    found = [tables.WorkerTableData.FromString(row) for row in accessor.get_worker_table()]
    rows = [common.protobuf_message_to_dict(row, _IDS) for row in found]
    return [row | row["worker_address"] | {"ip": row["worker_address"]["ip_address"]} for row in rows]


def job_rows(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def placement_groups() -> list[dict[str, Any]]:
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
