"""A wait for a result of which Ray lists no task is a hang only if it lasts."""

from copy import deepcopy

import pytest

from rldbg.live import explain
from rldbg.live.diagnosis.ray.lasting import is_unclear, mark_lasting, may_be_unclear
from rldbg.live.unarmed import ray_cluster, ray_stacks

RAY = {"nodes": [{"node_id": "n", "host": "h", "ip": "1", "alive": True, "total": {}, "free": {}}], "actors": []}
RAY |= {
    "tasks": [],
    "workers": [{"worker_type": "DRIVER", "node_id": "n", "pid": 1, "is_alive": True}],
    "placement_groups": [],
}
# From outside, an object begins with the number of its references.
FIRST, SECOND = "01" * 8 + "ab" * 24, "01" * 8 + "cd" * 24


def _driver(tasks=(FIRST,), line=56):
    frame = {"file": "/x/job.py", "line": line, "function": "main"}
    wait = {"kind": "ray_get", "tasks": list(tasks), "count": 1, "methods": ["get"]}
    thread = {"thread": "MainThread", "ident": 1, "native": 1, "main": True, "background": False, "holds": []}
    thread |= {"frames": [frame], "place": frame, "kernel": {"cpu": 0}, "wait": wait, "backlog": {}, "round": {}}
    facts = {"who": "driver", "role": "driver", "rank": None, "state": "running", "host": "h", "pid": 1}
    return facts | {"threads": [thread], "tasks": [], "ended": [], "children": []}


def test_a_wait_that_was_seen_once_is_no_hang_yet():
    (found,) = explain([_driver()], ray=RAY)
    assert found.kind == "not_listed" and found.is_harmless and is_unclear([found])
    assert "Ray lists no unfinished task that it started: the call may be new, or over" in found.verdict


def test_a_wait_that_is_the_same_in_a_later_look_is_a_hang():
    before, after = _driver(), _driver()
    # Its task has one reference more.
    after["threads"][0]["wait"]["tasks"] = ["02" + FIRST[2:]]
    mark_lasting([before], [after], 3.0)
    (found,) = explain([after], ray=RAY)
    assert found.kind == "ray_get" and not found.is_harmless and not is_unclear([found])
    assert found.verdict.endswith("no unfinished task that it started: the object was made elsewhere, or is lost")


@pytest.mark.parametrize("after", [_driver((SECOND,)), _driver((SECOND,), 57)])
def test_a_process_that_waits_for_another_task_by_then_goes_on(after):
    mark_lasting([_driver()], [after], 3.0)
    assert is_unclear(explain([after], ray=RAY))


def test_an_asyncio_task_that_awaits_the_same_in_a_later_look_lasts():
    stack = _driver()
    place = {"file": "/x/job.py", "line": 9, "function": "step"}
    stack["tasks"] = [{"key": "0x1", "task": "Task-1", "place": place, "wait": {"kind": "future", "tasks": [FIRST]}}]
    moved = deepcopy(stack)
    moved["tasks"][0]["place"] = place | {"line": 10}
    for after, lasts in ((deepcopy(stack), True), (moved, False)):
        mark_lasting([stack], [after], 3.0)
        assert bool(after["tasks"][0]["wait"].get("lasts")) == lasts


def test_a_process_whose_task_is_listed_need_not_be_seen_again():
    running = {"task_id": "ab" * 24, "state": "RUNNING"}
    assert not may_be_unclear(_driver(), RAY | {"tasks": [running]})
    assert may_be_unclear(_driver(), RAY | {"tasks": [running | {"state": "FINISHED"}]})
    assert may_be_unclear(_driver(()), RAY) and not may_be_unclear(_driver() | {"threads": []}, RAY)


@pytest.mark.parametrize(
    ("looks", "views", "kind"),
    [
        # Ray lists the task after a while, or the wait stays, or its worker was not there in the first look.
        ([FIRST, FIRST], [[], [{"state": "PENDING_NODE_ASSIGNMENT"}]], "unknown"),
        ([FIRST, FIRST], [[], []], "ray_get"),
        ([FIRST, SECOND, FIRST], [[], [], []], "not_listed"),
        ([FIRST, FIRST], [[{"state": "RUNNING", "worker_pid": 7}], [{"state": "PENDING_NODE_ASSIGNMENT"}]], "unknown"),
    ],
)
def test_a_cluster_is_looked_at_again_while_a_wait_is_unclear(monkeypatch, looks, views, kind):
    row = {"task_id": "ab" * 24, "name": "step", "actor_id": "", "parent_task_id": "", "node_id": "n", "type": "NORMAL"}
    row |= {"worker_pid": None, "required_resources": {}, "placement_group_id": None}
    listed = iter([RAY | {"notes": [], "tasks": [row | task for task in tasks]} for tasks in views])
    seen = iter([[_driver((task,)) | {"node_id": "n"}] for task in looks])
    monkeypatch.setattr(ray_cluster, "_view", lambda _ray: next(listed))
    monkeypatch.setattr(ray_stacks, "stacks_of", lambda *_arguments: next(seen))
    monkeypatch.setattr(ray_cluster.time, "sleep", lambda _s: None)
    view = ray_cluster._with_stacks(None, RAY | {"notes": []}, {"apart_s": 1.0})
    assert explain(view["stacks"], ray=view)[0].kind == kind
    assert next(seen, None) is next(listed, None) is None
