"""Queues of `ray.util.queue`: their items are in an actor of Ray, by which all processes know them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rldbg.agent import Message
from rldbg.agent.waits import SHARED_BY_RAY
from rldbg.live.diagnosis.graph.entries import process_id
from rldbg.live.diagnosis.graph.wait_graph import Node, WaitFacts
from rldbg.live.diagnosis.graph.wait_words import listed
from rldbg.live.diagnosis.ray.deaths import death_cause, died_unasked, raised_text, was_killed

QUEUE = "_QueueActor"


def _id_of(key: str, actors: Iterable[str]) -> str:
    """The id of a queue's actor in what is known of it; from outside, only bytes around it were read."""
    return next((each for each in actors if each in key), "") if key.startswith(SHARED_BY_RAY) else ""


def with_queue_ids(stacks: Sequence[Message], ray: Mapping[str, Any]) -> list[Message]:
    """Queues under the ids of their actors."""
    actors = [str(actor["actor_id"]) for actor in ray["actors"] if str(actor["class_name"]).endswith(QUEUE)]

    def known(key: str) -> str:
        found = _id_of(key, actors)
        return f"{SHARED_BY_RAY}{found}" if found else key

    def renamed(entry: WaitFacts) -> WaitFacts:
        shares = {known(key): methods for key, methods in (entry.get("shares") or {}).items()}
        wait = entry.get("wait") or {}
        return {**entry, "shares": shares, "wait": {**wait, "shared": known(str(wait.get("shared") or ""))}}

    return [
        stack | {name: [renamed(entry) for entry in stack[name]] for name in ("threads", "tasks") if stack.get(name)}
        for stack in stacks
    ]


def queue_actor(node: Node, ray: Mapping[str, Any]) -> WaitFacts | None:
    """The actor that holds the items of the queue that is waited for."""
    key = str(node.wait.get("shared") or "")
    return next((actor for actor in ray["actors"] if key == f"{SHARED_BY_RAY}{actor['actor_id']}"), None)


def dead_actors(ray: Mapping[str, Any]) -> list[str]:
    """Actors that have died unexpectedly, and why; not those that were made again under the same name."""
    living = {actor["name"] for actor in ray["actors"] if actor["state"] != "DEAD" and actor["name"]}
    dead = [actor for actor in ray["actors"] if actor["state"] == "DEAD" and died_unasked(actor)]
    dead = [actor for actor in dead if actor["name"] not in living]
    return [f"actor {actor['name'] or actor['class_name']} has died: {death_cause(actor)}" for actor in dead[:2]]


def killed_at_work(ray: Mapping[str, Any]) -> list[str]:
    """Actors that the program killed (`ray.kill`) while they ran a method: what it would have done is lost."""
    killed = {actor["actor_id"]: actor for actor in ray["actors"] if actor["state"] == "DEAD" and was_killed(actor)}
    running = {task["actor_id"]: task for task in ray["tasks"] if task["state"] == "FAILED" and _is_method(task)}
    lost = [(actor["name"] or actor["class_name"], running[each]) for each, actor in killed.items() if each in running]
    return [f"actor {name} was killed (ray.kill) before {task['name']} had returned" for name, task in lost[-2:]]


def _is_method(task: WaitFacts) -> bool:
    return not str(task["name"]).endswith(".__init__")


def lost_users(ray: Mapping[str, Any], told: str = "") -> list[str]:
    """Who may have used a queue and does so no longer: actors that died, and methods of others that failed. What they
    raised is not said again where it is `told`."""
    living = {actor["actor_id"] for actor in ray["actors"] if actor["state"] == "ALIVE"}
    failed = [task for task in ray["tasks"] if task["state"] == "FAILED" and task["actor_id"] in {None, "", *living}]
    fresh = [task for task in failed if f"{task['name']} has failed" not in told]
    return dead_actors(ray) + [f"{task['name']} has failed{_why(task, told)}" for task in fresh[-2:]]


@dataclass(frozen=True)
class QueueTables:
    """Tables of actors in which the queue that is waited for is beside others: what was meant for it may be there."""

    node: Node
    stacks: Sequence[Message]
    ray: Mapping[str, Any]

    def _tables(self) -> Iterator[tuple[Message, str, dict[str, str]]]:
        """Who has one, its name, and the keys of the queues in it by the ids of their actors."""
        own, actors = queue_actor(self.node, self.ray), [str(actor["actor_id"]) for actor in self.ray["actors"]]
        for stack in self.stacks if own is not None else ():
            for table in (stack.get("ray_keeps") or {}).get("tables") or []:
                queues = {_id_of(shared, actors): key for shared, key in table["queues"].items()}
                if own is not None and own["actor_id"] in queues:
                    yield stack, str(table["name"]), queues

    def beside(self) -> set[str]:
        """The ids of the actors of all queues in these tables."""
        return {each for _, _, queues in self._tables() for each in queues}

    def others_ahead(self) -> list[str]:
        """Those of the same table that have items."""
        own = queue_actor(self.node, self.ray)
        told = []
        for stack, name, queues in self._tables() if own is not None and self.node.kind == "queue_get" else ():
            others = [(key, self._items(each)) for each, key in queues.items() if own and each != own["actor_id"]]
            ahead = [f"{key} ({size} {'item' if size == 1 else 'items'})" for key, size in others if size]
            if own is not None and ahead:
                key = queues[str(own["actor_id"])]
                told.append(f"{stack['who']} has it in `{name}` under {key}, where others have items: {listed(ahead)}")
        return told[:1]

    def _items(self, actor_id: str) -> int:
        hosts = {node["node_id"]: node["host"] for node in self.ray["nodes"]}
        places = [(hosts.get(a["node_id"]), a["pid"]) for a in self.ray["actors"] if a["actor_id"] == actor_id]
        found = [stack.get("ray_keeps") or {} for stack in self.stacks if process_id(stack) in places]
        return next((int(each["items"]) for each in found if each.get("items")), 0)


def finished_users(node: Node, ray: Mapping[str, Any], tables: QueueTables) -> list[str]:
    """Methods that have put items into the queue that is waited for, or into one of the same table, or would, and have
    returned. Ray lists their calls of the queue's actor; of those in a method that is a coroutine it does not know who
    called."""
    ending, own = node.wait.get("ended_by") or (), queue_actor(node, ray)
    queues = tables.beside() | ({str(own["actor_id"])} if own is not None else set())
    uses = [task for task in ray["tasks"] if task["actor_id"] in queues]
    users = {task["parent_task_id"] for task in uses if str(task["name"]).rpartition(".")[2] in ending}
    methods = {str(each).partition(":")[0] for each in node.wait.get("functions") or ()}
    names = {actor["actor_id"]: actor["name"] or actor["class_name"] for actor in ray["actors"]}
    done: dict[str, list[str]] = {}
    for task in ray["tasks"]:
        name, actor = str(task["name"]), task["actor_id"]
        is_user = task["task_id"] in users or name.rpartition(".")[2] in methods
        if task["state"] == "FINISHED" and is_user and actor in names:
            done.setdefault(name, []).append(names[actor])
    return [f"{name} has returned ({listed(sorted({*actors}))})" for name, actors in done.items()]


def _why(task: WaitFacts, told: str) -> str:
    raised = raised_text(str(task.get("error_message") or ""))
    message = raised.partition(" at ")[0]
    return " with that" if message and message in told else f": {raised}" if raised else ""
