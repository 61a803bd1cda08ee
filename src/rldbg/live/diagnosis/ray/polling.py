"""Loops that ask Ray for something again and again, and why they never get it."""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rldbg.live.diagnosis.graph.entries import process_id
from rldbg.live.diagnosis.graph.wait_graph import Id, Node, WaitFacts
from rldbg.live.diagnosis.ray.queues import dead_actors

REMOTE = re.compile(r"(\w+)(?:\.options\(.*\))?\.remote\(")
"""A call of a method or function of Ray in the source, which it names."""
_GET_ACTOR = re.compile(r"""get_actor\(['"]([^'"]+)['"](.*)""")
_NAMESPACE = re.compile(r"""namespace=['"]([^'"]+)['"]""")


def is_one_call(source: str) -> bool:
    """Whether an expression is a call of a method or function of Ray, not one with several inside."""
    try:
        called = ast.parse(source, mode="eval").body
    except SyntaxError:  # it is cut
        return False
    return isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr == "remote"


class PollingLoops:
    """`actor_node` gives the node of an actor, which says what became of it."""

    def __init__(
        self,
        nodes: Sequence[Node],
        stacks: Sequence[WaitFacts],
        ray: Mapping[str, Any],
        actor_node: Callable[[WaitFacts], Node],
    ) -> None:
        self._nodes = nodes
        self._stacks = stacks
        self._ray = ray
        self._actor_node = actor_node

    def mark(self) -> None:
        """A loop that asks Ray anew in each look, for the same, while nobody else does anything, polls."""
        seen = [node for node in self._nodes if not node.background or node.kind == "idle"]
        for node in (node for node in seen if node.asks):
            others = [each for each in seen if each is not node]
            if others and all(each.waits or each.gone or each.asks or each.kind == "idle" for each in others):
                node.wait = {"kind": "sleep", "again": True, "polls": node.asks}
                node.activity = f"polls (a loop {node.asks})"

    def explain(self) -> None:
        for node in self._nodes:
            if node.wait.get("polls"):
                self._retries(node, str(node.wait["polls"]))
        self._ask_in_vain()

    def _retries(self, node: Node, polls: str) -> None:
        """A loop that calls a method again and again whose actor has died, or looks for an actor by its name."""
        if (named := _GET_ACTOR.search(polls)) is not None:
            self._named_actor(node, named[1], named[2])
        called = REMOTE.search(polls)
        actors = {actor["actor_id"]: actor for actor in self._ray["actors"]}
        failed = [
            actor
            for task in self._ray["tasks"]
            if called and task["state"] == "FAILED" and str(task["name"]).rpartition(".")[2] == called[1]
            if (actor := actors.get(task["actor_id"])) is not None and actor["state"] == "DEAD"
        ]
        if failed:
            dead = self._actor_node(failed[-1])
            node.activity = f"{node.activity.removesuffix(')')}; {dead.label} {dead.activity})"
            node.gone = "ended"
        elif makers := self._dead_makers(node):
            told = f"{makers[0].label}, which has made an object that it asks for, {makers[0].activity}"
            node.activity, node.gone = f"{node.activity.removesuffix(')')}; {told})", "ended"

    def _dead_makers(self, node: Node) -> list[Node]:
        """Actors that have died and have made what a loop tries to get: the id of an object begins with that of the
        task that made it, which ends with that of its actor."""
        dead = [actor for actor in self._ray["actors"] if actor["state"] == "DEAD"]
        tried = node.wait.get("tries") or ()
        return [self._actor_node(actor) for actor in dead if any(actor["actor_id"] in each for each in tried)]

    def _ask_in_vain(self) -> None:
        """Loops that ask other actors for something, where all others are idle or wait: who has died does not do it,
        nor a thread that an actor has started and that has ended."""
        seen = [node for node in self._nodes if not node.background]
        asking = [node for node in seen if node.wait.get("polls") and node.calls and not node.gone]
        others = [node for node in seen if not any(node is each for each in asking)]
        if not all(node.waits or node.gone or node.kind == "idle" for node in others):
            return
        lost = dead_actors(self._ray) if any(node.waits for node in others) else []
        for node in asking:
            if told := lost or self._ended_threads(node.id[:2]):
                node.activity, node.gone = f"{node.activity} at {node.place}; {'; '.join(told)}", "ended"

    def _ended_threads(self, asking: Id) -> list[str]:
        """Threads that other actors keep and that have ended: one may have done what is asked for."""
        elsewhere = [stack for stack in self._stacks if process_id(stack) != asking]
        ended = [
            (stack["who"], each) for stack in elsewhere for each in stack.get("ended") or [] if each.get("kept_as")
        ]
        words = [f"thread {each['name']} of {who} (self.{each['kept_as']}) has ended" for who, each in ended]
        return ["all others are idle or wait", *words[:3]] if words else []

    def _named_actor(self, node: Node, name: str, arguments: str) -> None:
        """A loop that asks for an actor by its name until there is one."""
        known = [actor for actor in self._ray["actors"] if actor["name"] == name]
        told = [f"{each.label} {each.activity}" for actor in known[-1:] for each in [self._actor_node(actor)]]
        alive = [actor for actor in known if actor["state"] == "ALIVE"]
        why = "" if alive else told[0] if told else "Ray lists no actor of that name"
        looked = self._namespace(node, arguments)
        elsewhere = sorted({str(actor.get("ray_namespace") or "") for actor in alive})
        if alive and looked and "" not in elsewhere and looked not in elsewhere:
            why = f"actor {name} is in namespace {' and '.join(elsewhere)}, and the loop looks in {looked}"
        if why:
            node.activity, node.gone = f"{node.activity.removesuffix(')')}; {why})", "not_found"

    def _namespace(self, node: Node, arguments: str) -> str:
        """Where a process looks for actors: where the call says, else in the namespace of its job; empty where neither
        is known."""
        if "namespace=" in arguments:
            told = _NAMESPACE.search(arguments)
            return told[1] if told is not None else ""
        hosts = {each["node_id"]: each["host"] for each in self._ray["nodes"]}
        rows = [*self._ray["actors"], *({**task, "pid": task["worker_pid"]} for task in self._ray["tasks"])]
        here = {row.get("job_id") for row in rows if (hosts.get(row["node_id"]), row["pid"]) == node.id[:2]}
        jobs = self._ray.get("jobs") or []
        found = {job["namespace"] for job in jobs if job["job_id"] in here or (job["host"], job["pid"]) == node.id[:2]}
        return str(found.pop()) if len(found) == 1 else ""
