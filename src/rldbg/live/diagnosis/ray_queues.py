"""Queues of `ray.util.queue`: their items are in an actor of Ray, by which all processes know them."""

from collections.abc import Mapping, Sequence
from typing import Any

from rldbg.agent import Message
from rldbg.agent.waits import SHARED_BY_RAY
from rldbg.live.diagnosis.ray_deaths import death_cause, died_unasked, raised_text
from rldbg.live.diagnosis.wait_graph import Node, WaitFacts
from rldbg.live.diagnosis.wait_words import listed

QUEUE = "_QueueActor"


def with_queue_ids(stacks: Sequence[Message], ray: Mapping[str, Any]) -> list[Message]:
    """Queues under the ids of their actors; from outside, only bytes around these were read."""
    actors = [str(actor["actor_id"]) for actor in ray["actors"] if str(actor["class_name"]).endswith(QUEUE)]

    def known(key: str) -> str:
        found = next((each for each in actors if each in key), "") if key.startswith(SHARED_BY_RAY) else ""
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


def lost_users(ray: Mapping[str, Any]) -> list[str]:
    """Who may have used a queue and does so no longer: actors that died, and methods of others that failed."""
    living = {actor["actor_id"] for actor in ray["actors"] if actor["state"] == "ALIVE"}
    failed = [task for task in ray["tasks"] if task["state"] == "FAILED" and task["actor_id"] in {None, "", *living}]
    return dead_actors(ray) + [f"{task['name']} has failed{_why(task)}" for task in failed[-2:]]


def finished_users(node: Node, ray: Mapping[str, Any]) -> list[str]:
    """Methods that have put items into the queue that is waited for, or would, and have returned. Ray lists their calls
    of the queue's actor; of those in a method that is a coroutine it does not know who called."""
    ending, key = node.wait.get("ended_by") or (), str(node.wait.get("shared") or "")
    uses = [task for task in ray["tasks"] if f"{SHARED_BY_RAY}{task['actor_id']}" == key]
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


def _why(task: WaitFacts) -> str:
    raised = raised_text(str(task.get("error_message") or ""))
    return f": {raised}" if raised else ""
