"""What a process of Ray keeps for its actor while this runs nothing, from objects that look like Ray's."""

from types import ModuleType, SimpleNamespace

from rldbg.agent.waits.others.kept import ray_keeping
from rldbg.agent.waits.reading.objects import OwnObject


class _Id:
    def __init__(self, number):
        self.number = number

    def hex(self):
        return self.number


class Queue:
    """As `ray.util.queue` makes it."""

    def __init__(self, number):
        self.actor = SimpleNamespace(_ray_actor_id=_Id(number))


class _QueueActor:
    def __init__(self, *items):
        self.maxsize, self.queue = 0, SimpleNamespace(_queue=list(items), _maxsize=0, _unfinished_tasks=0)


class Router:
    def __init__(self):
        self.queues, self.sizes, self.name = {"policy": Queue("a1"), "critic": Queue("b2")}, {"policy": 1}, "router"


def _keeping(actor, *, loaded=("ray.util.queue",)):
    module = ModuleType("ray._private.worker")
    module.global_worker = SimpleNamespace(actors={"id": actor})
    module._global_node = SimpleNamespace(_gcs_address="127.0.0.1:6379")
    modules = {"ray._private.worker": module} | {name: ModuleType(name) for name in loaded}
    return ray_keeping({name: OwnObject(each) for name, each in modules.items()})


def test_tables_of_queues_are_known_by_what_all_processes_call_these():
    found = _keeping(Router())
    assert found["cluster"] == "127.0.0.1:6379" and found["items"] is None
    queues = {"shared:ray:a1": "'policy'", "shared:ray:b2": "'critic'"}
    assert found["tables"] == [{"name": "self.queues", "queues": queues}]
    # AND they are not looked for where no queue of Ray was loaded
    assert _keeping(Router(), loaded=())["tables"] == []


def test_the_actor_of_a_queue_counts_its_items():
    assert _keeping(_QueueActor(1, 2, 3))["items"] == 3 and _keeping(_QueueActor())["items"] == 0


def test_a_process_without_ray_keeps_nothing_for_it():
    assert ray_keeping({}) == {}
