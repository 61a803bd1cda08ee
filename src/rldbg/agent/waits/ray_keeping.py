"""What a process of Ray keeps for its actor, also while this runs nothing: queues of `ray.util.queue`, and their
items."""

from collections.abc import Iterator, Mapping

from .kept import entries_of
from .kernel import Facts
from .looking import is_ray_queue, queue_facts, shared_key
from .objects import Object, is_a


def ray_keeping(modules: Mapping[str, Object]) -> Facts:
    """`cluster` is the address of the one that the process has joined; `tables` name attributes of its actor in which
    several queues are, by what all processes know these by; `items` counts those of the queue that the actor is."""
    module = modules.get("ray._private.worker")
    worker = module.get("global_worker") if module is not None else None
    if module is None or worker is None:
        return {}
    node, kept = module.get("_global_node"), worker.get("actors")
    address = node.attributes().get("_gcs_address") if node is not None else None
    actors = [actor for _, actor in kept.pairs()] if kept is not None and "ray.util.queue" in modules else []
    queues = [actor.attributes().get("queue") for actor in actors if is_a(actor, "_QueueActor")]
    return {
        "cluster": (address.text() if address is not None else "") or "",
        "tables": [table for actor in actors for table in _tables(actor)],
        "items": next((queue_facts(queue)["size"] for queue in queues if queue is not None), None),
    }


def _tables(actor: Object) -> Iterator[Facts]:
    for name, value in actor.attributes().items():
        queues = {shared_key(each): key for key, each in entries_of(value) if is_ray_queue(each)}
        if queues:
            yield {"name": f"self.{name}", "queues": queues}
