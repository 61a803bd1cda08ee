"""What Ray lists, and which nodes of the wait graph stand for it: workers of actors and tasks, by name and place."""

from collections.abc import Mapping, Sequence
from typing import Any

from rldbg.agent import Message, snake_case
from rldbg.agent.waits import RAYS_LOOP
from rldbg.live.diagnosis.graph.wait_graph import Id, Node, WaitFacts

CREATION = "ACTOR_CREATION_TASK"


def name_workers(stacks: Sequence[Message], ray: Mapping[str, Any]) -> list[Message]:
    """Stacks of workers under the names of their actors, tasks or drivers; helper processes under their worker's."""
    names: dict[tuple[Any, Any], str] = {}
    for actor in ray["actors"]:
        if actor["state"] in ("ALIVE", "RESTARTING"):
            names[actor["node_id"], actor["pid"]] = actor["name"] or snake_case(
                str(actor["class_name"]).rpartition(".")[2]
            )
    by_id = {actor["actor_id"]: actor for actor in ray["actors"]}
    for task in ray["tasks"]:
        actor = by_id.get(task["actor_id"])
        if task["state"].startswith("RUNNING") and (actor is None or task["type"] == CREATION):
            given = str(actor["name"] or "") if actor is not None else ""
            names.setdefault((task["node_id"], task["worker_pid"]), given or str(task["name"]))
    for worker in ray["workers"]:
        if worker["worker_type"] == "DRIVER":
            names[worker["node_id"], worker["pid"]] = "driver"
    twice = [name for name in names.values() if list(names.values()).count(name) > 1]
    found = []
    for stack in stacks:
        name = names.get((stack["node_id"], stack["pid"]))
        parent = names.get((stack["node_id"], stack.get("parent")))
        role = name or (f"{parent}.child" if parent else str(stack["role"]))
        who = f"{role}@{stack['pid']}" if name is None or name in twice else role
        found.append(stack | {"who": who, "role": role})
    return found


class RayView:
    """Actors and tasks by their ids, and the nodes of each process."""

    def __init__(self, nodes: list[Node], ray: Mapping[str, Any]) -> None:
        self.nodes = nodes
        self.ray = ray
        self.hosts = {node["node_id"]: node["host"] for node in ray["nodes"]}
        self.actors = {actor["actor_id"]: actor for actor in ray["actors"]}
        self.tasks = {task["task_id"]: task for task in ray["tasks"]}
        self.drivers = {
            self.place(row["node_id"], row["pid"]) for row in ray["workers"] if row["worker_type"] == "DRIVER"
        }
        self.by_process: dict[Any, list[Node]] = {}
        for node in nodes:
            self.by_process.setdefault(node.id[:2], []).append(node)
        # Processes of actors that run as many calls as they can.
        self.full: set[Any] = set()

    def place(self, node_id: Any, pid: Any) -> tuple[Any, Any]:
        return self.hosts.get(node_id), pid

    def running(self, node: Node) -> list[WaitFacts]:
        """The tasks that a worker runs; of several, those whose function is on the stack."""
        here = [
            task
            for task in self.tasks.values()
            if task["state"] == "RUNNING" and self.place(task["node_id"], task["worker_pid"]) == node.id[:2]
        ]
        named = [task for task in here if str(task["name"]).rpartition(".")[2] in node.functions]
        return named or here

    def title(self, task: WaitFacts) -> str:
        name = str(task["name"])
        actor = self.actors.get(task["actor_id"])
        if actor is not None and actor["name"]:
            return f"{name} (actor {actor['name']})"
        return name

    def is_from_driver(self, task: WaitFacts) -> bool:
        parent = self.tasks.get(task["parent_task_id"])
        return task["type"] != "DRIVER_TASK" and (parent is None or parent["type"] == "DRIVER_TASK")

    def worker(self, process: tuple[Any, Any], method: str) -> Node | None:
        """The asyncio task or thread that runs a method, else what waits there, else what runs another call, else the
        main thread."""
        own = self.by_process.get(process, [])
        # Threads of libraries have functions of the same names.
        users = [node for node in own if not node.background]
        running = [node for node in users if method and method in node.functions]
        order = (lambda n: "task" in n.id, lambda n: n.waits, lambda n: True)
        loops = [node for node in own if node.kind == "event_loop" or RAYS_LOOP in node.label]
        mains = [node for node in own if node.id[2:] == ("main",)]
        called = {str(task["name"]).rpartition(".")[2] for task in self.running_in({process})}
        calls = [node for node in users if node.functions & called]
        for choice in (running, [node for node in users if node.waits], calls, loops or mains or own[:1]):
            for test in order:
                if found := next(filter(test, choice), None):
                    return found
        return None

    def creating(self, actor: WaitFacts) -> Node | None:
        """What runs the constructor of an actor that has not finished it."""
        if actor["state"] not in ("PENDING_CREATION", "RESTARTING"):
            return None
        for task in self.tasks.values():
            if task["type"] == CREATION and task["actor_id"] == actor["actor_id"] and "RUNNING" in task["state"]:
                found = self.worker(self.place(task["node_id"], task["worker_pid"]), "__init__")
                return None if found is None or found.gone else found
        # For a restarted constructor Ray lists the process but no task.
        found = self.worker(self.place(actor["node_id"], actor["pid"]), "__init__")
        return found if found is not None and "__init__" in found.functions and not found.gone else None

    def process_of(self, actor: WaitFacts) -> tuple[Any, Any] | None:
        """The process of an actor that lives or is in its constructor."""
        if actor["state"] == "ALIVE":
            return self.place(actor["node_id"], actor["pid"])
        created = [t for t in self.tasks.values() if t["type"] == CREATION and t["actor_id"] == actor["actor_id"]]
        places = [self.place(t["node_id"], t["worker_pid"]) for t in created if "RUNNING" in t["state"]]
        return places[0] if places and actor["state"] != "DEAD" else None

    def running_in(self, processes: set[Id]) -> list[WaitFacts]:
        every = [task for task in self.tasks.values() if task["state"].startswith("RUNNING")]
        return [task for task in every if self.place(task["node_id"], task["worker_pid"]) in processes]

    def has_started(self, node: Node, task: WaitFacts) -> bool:
        if node.id[:2] in self.drivers and self.is_from_driver(task):
            return True
        return any(each["task_id"] == task["parent_task_id"] for each in self.running(node))
