"""Of a job with more tasks than Ray lists at once, those that have not finished are always listed."""

from types import SimpleNamespace

from rldbg.live.unarmed import ray_cluster

TASKS = [SimpleNamespace(task_id=number, state="FINISHED") for number in range(20_000)]
TASKS.append(SimpleNamespace(task_id=20_000, state="RUNNING"))


def list_tasks(*, limit, filters=(), **_options):
    """As Ray's: it keeps the first ones of those that pass the filters."""
    compare = {"=": str.__eq__, "!=": str.__ne__}
    passing = [task for task in TASKS if all(compare[how](getattr(task, name), value) for name, how, value in filters)]
    return passing[:limit]


def test_a_running_task_is_listed_however_many_have_finished():
    state = SimpleNamespace(list_tasks=list_tasks, list_actors=lambda **_options: [SimpleNamespace(actor_id="a")])
    rows = ray_cluster._listed(state, "tasks", {"limit": 10_000})
    assert [row["task_id"] for row in rows if row["state"] == "RUNNING"] == [20_000]
    assert 0 < sum(row["state"] == "FINISHED" for row in rows) < 10_000
    assert ray_cluster._listed(state, "actors", {"limit": 10_000}) == [{"actor_id": "a"}]
