"""Ray's own tables in the form of its state API, and what they explain."""

import subprocess

import pytest

from rldbg.core import IncompleteDataError
from rldbg.live import explain
from rldbg.live.unarmed import ray_cluster
from rldbg.live.unarmed.ray_cluster import _place_constructors
from rldbg.live.unarmed.ray_tables import group_rows

GROUPS = [
    {
        "placement_group_id": f"{name}1",
        "name": name,
        "bundles": {0: {"CPU": cpus}, 1: {"CPU": cpus}},
        "strategy": "STRICT_PACK",
        "state": "PENDING",
        "stats": {},
    }
    for name, cpus in (("engines", 8.0), ("critics", 4.0), ("rewards", 16.0))
]
NODES = [{"node_id": "n1", "host": "h", "ip": "10.0.0.1", "alive": True, "total": {"CPU": 2}, "free": {"CPU": 2}}]


def test_all_placement_groups_that_a_process_waits_for_are_named():
    ray = {"actors": [], "workers": [], "tasks": [], "placement_groups": group_rows(GROUPS), "nodes": NODES}
    causes = explain([_waits(11, "manager", ["get"], ["0critics1", "0rewards1"])], ray=ray)
    first, *others = [cause.verdict for cause in causes]
    assert "manager waits at job.py:7 (work) for placement groups to be ready" in first
    assert "placement group critics is pending: it asks for 4 CPU" in first
    assert "placement group rewards is pending: it asks for 16 CPU" in first and "engines" not in first
    assert any("placement group engines waits for resources" in other for other in others)


def _waits(pid, who, methods, groups):
    wait = {"kind": "ray_get", "tasks": [], "count": 1, "methods": methods, "groups": groups, "timeout": False}
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


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("print('{\"actors\": []}'); print('Ray says goodbye')", {"actors": []}),
        ("print('Ray says hello')", "failed: Ray says hello"),
        ("pass", "ended with exit code 0 and no answer"),
    ],
)
def test_what_ray_prints_around_the_answer_does_not_matter(monkeypatch, script, found):
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run([command[0], "-c", script], **options))
    if isinstance(found, dict):
        assert ray_cluster.look_at_ray("auto").items() >= found.items()
    else:
        with pytest.raises(IncompleteDataError, match=found):
            ray_cluster.look_at_ray("auto")
