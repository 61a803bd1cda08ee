"""Ray's tables of a cluster without a dashboard, in the form of its state API."""

from rldbg.live import explain
from rldbg.live.unarmed.ray_cluster import _place_constructors
from rldbg.live.unarmed.ray_tables import actor_rows, driver_rows, group_rows

ACTORS = [
    {
        "ActorID": "a1",
        "ActorClassName": "Manager",
        "Name": "manager",
        "JobID": "01000000",
        "Address": {"IPAddress": "10.0.0.1", "Port": 1, "NodeID": "n1"},
        "State": "ALIVE",
        "Pid": 11,
    }
]
JOBS = [{"JobID": "01000000", "DriverIPAddress": "10.0.0.1", "DriverPid": 12, "IsDead": False}]
GROUPS = [
    {
        "placement_group_id": "g1",
        "name": "engines",
        "bundles": {0: {"CPU": 8.0}, 1: {"CPU": 8.0}},
        "strategy": "STRICT_PACK",
        "state": "PENDING",
        "stats": {},
    }
]
NODES = [{"node_id": "n1", "host": "h", "ip": "10.0.0.1", "alive": True, "total": {"CPU": 2}, "free": {"CPU": 2}}]


def test_an_actor_that_waits_for_a_placement_group_is_explained_without_tasks():
    ray = {"actors": actor_rows(ACTORS), "workers": driver_rows(JOBS, NODES), "placement_groups": group_rows(GROUPS)}
    ray |= {"tasks": [], "nodes": NODES, "unlisted": ["tasks", "actors", "workers", "placement_groups"]}
    causes = explain([_waits(11, "manager", ["ready", "get"]), _waits(12, "driver", ["get"])], ray=ray)
    told = " | ".join(cause.verdict for cause in causes)
    assert "manager waits at job.py:7 (work) for a placement group to be ready" in told
    assert "placement group engines is pending" in told and "8 CPU" in told
    assert "which task makes it is not known without Ray's dashboard" in told


def _waits(pid, who, methods):
    wait = {"kind": "ray_get", "tasks": [], "count": 1, "methods": methods, "timeout": False}
    place = {"file": "job.py", "line": 7, "function": "work"}
    thread = {"thread": "MainThread", "ident": pid, "native": pid, "main": True, "background": False, "kernel": {}}
    thread |= {"frames": [place], "place": place, "wait": wait, "holds": []}
    process = {"who": who, "role": who, "rank": None, "state": "running", "host": "h", "pid": pid, "node_id": "n1"}
    return process | {"threads": [thread], "tasks": [], "ended": [], "children": []}


def test_a_constructor_that_runs_is_on_the_node_of_its_process():
    workers = [{"pid": 7, "node_id": "n"}, {"pid": 8, "node_id": "n"}, {"pid": 8, "node_id": "m"}]
    tasks = [{"worker_pid": pid, "node_id": None} for pid in (7, 8, None)]
    _place_constructors({"workers": workers, "tasks": tasks})
    # AND nothing is guessed where two nodes have a process of that number
    assert [task["node_id"] for task in tasks] == ["n", None, None]
