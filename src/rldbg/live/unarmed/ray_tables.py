"""Rows in the form of Ray's state API from the cluster's own tables, which are there without a dashboard too."""

import importlib
from collections.abc import Mapping
from typing import Any

StateRow = dict[str, Any]
_IDS = ["actor_id", "owner_id", "job_id", "node_id", "placement_group_id", "worker_id"]


def rows_of(kind: str) -> list[StateRow]:
    state = importlib.import_module("ray._private.state").state
    common = importlib.import_module("ray.util.state.common")
    tables = importlib.import_module("ray.core.generated.gcs_pb2")
    accessor = state._connect_and_get_accessor()
    if kind == "tasks":
        events = accessor.get_task_events()
        return [common.protobuf_to_task_state_dict(tables.TaskEvents.FromString(event)) for event in events]
    if kind == "actors":
        found = [tables.ActorTableData.FromString(row) for row in accessor.get_actor_table(None, None)]
        return [common.protobuf_message_to_dict(row, _IDS) for row in found]
    found = [tables.WorkerTableData.FromString(row) for row in accessor.get_worker_table()]
    rows = [common.protobuf_message_to_dict(row, _IDS) for row in found]
    return [row | row["worker_address"] | {"ip": row["worker_address"]["ip_address"]} for row in rows]


def placement_groups() -> list[StateRow]:
    """Ray's state API does not tell their strategy."""
    return group_rows(importlib.import_module("ray.util").placement_group_table().values())


def group_rows(groups: Any) -> list[StateRow]:
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
