"""A driver of Ray that is looked at alone: its cluster is pointed at, and nothing is called a hang."""

import pytest

from rldbg.live import UnarmedJob, explain, look_at_job
from rldbg.live.unarmed import job

PLACE = {"file": "/x/job.py", "line": 47, "function": "loop"}
GET = {"kind": "ray_get", "tasks": [], "count": 1, "methods": ["get"]}
TAKE = {"kind": "queue_get", "type": "Ray queue", "between": "ray", "name": "feed", "key": "0x1", "shared": "q"}
TAKE |= {"ended_by": ["put"], "users": []}


@pytest.mark.parametrize("wait", [GET, TAKE])
@pytest.mark.parametrize(
    ("keeps", "named"), [({}, "auto"), ({"cluster": ""}, "auto"), ({"cluster": "10.0.0.1:6379"}, "10.0.0.1:6379")]
)
def test_the_cluster_of_a_driver_is_named(monkeypatch, wait, keeps, named):
    thread = {"thread": "MainThread", "ident": 1, "native": 1, "main": True, "background": False, "holds": []}
    thread |= {"frames": [PLACE], "place": PLACE, "kernel": {}, "wait": dict(wait)}
    driver = {"who": "main@1", "role": "main", "rank": None, "state": "running", "host": "h", "pid": 1}
    driver |= {"threads": [thread], "tasks": [], "ended": [], "children": [], "ray_keeps": keeps}
    monkeypatch.setattr(job, "look", lambda **_request: [driver])
    (found,) = explain(look_at_job(UnarmedJob(pids=(1,))).stacks)
    assert found.is_harmless and found.kind == "unknown"
    assert found.verdict.endswith(f"; its cluster was not looked at: rldbg stacks --ray {named} --diagnose")
