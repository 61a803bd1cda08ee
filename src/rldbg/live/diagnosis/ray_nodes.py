"""Ray in the wait graph: `ray.get` waits for tasks, and these wait for workers or resources."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rldbg.agent import Message, snake_case
from rldbg.live.diagnosis.entries import process_id
from rldbg.live.diagnosis.lost_waits import DUTIES
from rldbg.live.diagnosis.ray_deaths import death_cause, died_unasked, raised_text, times_restarted
from rldbg.live.diagnosis.ray_queues import dead_actors, lost_users, queue_actor
from rldbg.live.diagnosis.ray_resources import RayResources, group_label
from rldbg.live.diagnosis.wait_graph import Edge, Id, Node, WaitFacts
from rldbg.live.diagnosis.wait_words import clause

_LOOP_THREAD = "AsyncIO Thread"
"""What Ray calls the thread that runs the coroutines of an async actor."""
_DONE = frozenset({"FINISHED", "FAILED"})
_CREATION, _NORMAL = "ACTOR_CREATION_TASK", "NORMAL_TASK"
_ID_LENGTH = 48
_REMOTE = re.compile(r"(\w+)(?:\.options\(.*\))?\.remote\(")
_GET_ACTOR = re.compile(r"""get_actor\(['"]([^'"]+)['"]""")
# What can be the wait for a Ray task: in async actors it is a future of asyncio.
_MAY_WAIT_FOR_RAY = frozenset({"ray_get", "future", "task", "condition", "event"})


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
        if task["state"].startswith("RUNNING") and (actor is None or task["type"] == _CREATION):
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


def join_ray(nodes: list[Node], stacks: Sequence[Message], ray: Mapping[str, Any]) -> list[Node]:
    return _Joining(nodes, stacks, ray).joined()


class _Joining:
    def __init__(self, nodes: list[Node], stacks: Sequence[Message], ray: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._ray = ray
        self._resources = RayResources(ray)
        self._hosts = {node["node_id"]: node["host"] for node in ray["nodes"]}
        self._actors = {actor["actor_id"]: actor for actor in ray["actors"]}
        self._tasks = {task["task_id"]: task for task in ray["tasks"]}
        self._drivers = {
            self._place(row["node_id"], row["pid"]) for row in ray["workers"] if row["worker_type"] == "DRIVER"
        }
        self._by_process: dict[Any, list[Node]] = {}
        for node in nodes:
            self._by_process.setdefault(node.id[:2], []).append(node)
        self._processes = {process_id(stack) for stack in stacks}
        self._added: dict[Any, Node] = {}
        self._explained: set[Any] = set()
        # Processes of actors that run as many calls as they can.
        self._full: set[Any] = set()

    def joined(self) -> list[Node]:
        self._note_failures()
        for node in self._nodes:
            if node.wait.get("between") == "ray" and not node.edges:
                self._queue(node)
            elif node.wait.get("polls"):
                self._retries(node)
            elif node.waits and node.kind in _MAY_WAIT_FOR_RAY and not node.edges:
                self._connect(node)
        for node in self._nodes:
            if node.wait.get("functions") and node.kind in DUTIES and not node.edges:
                self._methods(node)
        self._ask_in_vain()
        return [*self._nodes, *self._added.values(), *self._unwaited()]

    def _note_failures(self) -> None:
        """Why an actor is idle: its last task has failed, which Ray remembers."""
        for actor in (actor for actor in self._ray["actors"] if actor["state"] == "ALIVE"):
            own = [task for task in self._tasks.values() if task["actor_id"] == actor["actor_id"]]
            failed = [task for task in own if task["state"] == "FAILED" and task.get("error_message")]
            for node in self._by_process.get(self._place(actor["node_id"], actor["pid"]), []) if failed else ():
                if node.kind == "idle" and "raised" not in node.activity:
                    raised = raised_text(str(failed[-1]["error_message"]))
                    node.activity += f"; its {str(failed[-1]['name']).rpartition('.')[2]} has failed: {raised}"

    def _place(self, node_id: Any, pid: Any) -> tuple[Any, Any]:
        return self._hosts.get(node_id), pid

    def _connect(self, node: Node) -> None:
        awaited = list(self._awaited(node))
        if not awaited and node.kind != "ray_get":
            return
        pending = [task for task in awaited if task["state"] not in _DONE]
        if not pending and not (awaited and self._not_fetched(node, awaited)):
            self._not_a_task(node)
        if not pending:
            return
        more = f" and {len(pending) - 1} more" if len(pending) > 1 else ""
        text = f"the result of {self._title(pending[0])}{more}"
        node.wait = {**node.wait, "kind": "ray_get", "text": text, "lost": ""}
        for task in pending:
            node.edges += self._edges(task)

    def _methods(self, node: Node) -> None:
        """What would end the wait is a method of the actor: who calls it, and who may have called it and is gone."""
        methods = {str(each).partition(":")[0] for each in node.wait["functions"]}
        others = [each for each in self._nodes if each.id[:2] != node.id[:2] and each.calls & methods]
        # Who waits for an answer of this process has called it already.
        others = [each for each in others if all(edge.target[:2] != node.id[:2] for edge in each.edges)]
        node.edges += [
            Edge(other.id, f"should call {sorted(other.calls & methods)[0]}")
            for other in others
            if not other.background
        ]
        node.edges += self._edges_to_absent(node, methods) if not node.edges else []
        full = f"{' and '.join(sorted(methods))} cannot be called either: its actor runs as many calls as it can"
        reasons = (
            [full] if node.id[:2] in self._full else [*self._missing_callers(node, methods), *lost_users(self._ray)]
        )
        lost = "; ".join([*filter(None, [str(node.wait.get("lost") or "")]), *reasons])
        node.wait = {**node.wait, "lost": lost if not node.edges else ""}

    def _missing_callers(self, node: Node, methods: set[str]) -> list[str]:
        """Actors of the same class as those that wait in one of the methods, which do something else."""
        waiting = self._waiting_in(node, methods)
        alive = [actor for actor in self._alike(waiting) if actor["state"] == "ALIVE"]
        fronts = [self._worker(self._place(actor["node_id"], actor["pid"]), "") for actor in alive]
        method = " or ".join(sorted(methods))
        return [f"{front.label} has not called {method}: {_state(front)}" for front in fronts[:3] if front is not None]

    def _edges_to_absent(self, node: Node, methods: set[str]) -> list[Edge]:
        """Actors and tasks of the same kind as those that wait in one of the methods, which have not come there because
        they have no process or wait themselves."""
        waiting = self._waiting_in(node, methods)
        absent = [each for actor in self._alike(waiting) if (each := self._stuck(actor)) is not None]
        here = {t["name"] for t in self._running_in(waiting) if t["type"] == _NORMAL}
        absent += [
            self._task_node(task)
            for task in self._tasks.values()
            if task["name"] in here and task["type"] == _NORMAL and task["state"] == "PENDING_NODE_ASSIGNMENT"
        ]
        ended_by = f" ({node.wait['guard']} is needed)" if node.wait.get("guard") else ""
        method = " or ".join(sorted(methods))
        return [Edge(each.id, f"has not called {method}{ended_by}") for each in absent if each.gone or each.waits]

    def _waiting_in(self, node: Node, methods: set[str]) -> set[Id]:
        """Processes that wait for one of these methods, which the process of the node runs."""
        runs = {f"runs {each}" for each in methods}
        return {
            each.id[:2]
            for each in self._nodes
            if any(edge.target[:2] == node.id[:2] and edge.relation in runs for edge in each.edges)
        }

    def _alike(self, processes: set[Id]) -> list[WaitFacts]:
        """Other actors of the classes that run in these processes."""
        places = {actor["actor_id"]: self._process_of(actor) for actor in self._ray["actors"]}
        classes = {actor["class_name"] for actor in self._ray["actors"] if places[actor["actor_id"]] in processes}
        every = [actor for actor in self._ray["actors"] if actor["class_name"] in classes]
        return [actor for actor in every if places[actor["actor_id"]] not in processes]

    def _stuck(self, actor: WaitFacts) -> Node | None:
        """What keeps an actor from its work: it has no process, or waits in its constructor or elsewhere."""
        if (process := self._process_of(actor)) is not None:
            found = self._worker(process, "__init__")
            return found if found is not None and found.waits else None
        again = [each for each in self._ray["actors"] if each["name"] and each["name"] == actor["name"]]
        return self._actor_node(actor) if again in ([], [actor]) and died_unasked(actor) else None

    def _process_of(self, actor: WaitFacts) -> tuple[Any, Any] | None:
        """The process of an actor that lives or is in its constructor."""
        if actor["state"] == "ALIVE":
            return self._place(actor["node_id"], actor["pid"])
        created = [t for t in self._tasks.values() if t["type"] == _CREATION and t["actor_id"] == actor["actor_id"]]
        places = [self._place(t["node_id"], t["worker_pid"]) for t in created if "RUNNING" in t["state"]]
        return places[0] if places and actor["state"] != "DEAD" else None

    def _running_in(self, processes: set[Id]) -> list[WaitFacts]:
        every = [task for task in self._tasks.values() if task["state"].startswith("RUNNING")]
        return [task for task in every if self._place(task["node_id"], task["worker_pid"]) in processes]

    def _retries(self, node: Node) -> None:
        """A loop that calls a method again and again whose actor has died."""
        called = _REMOTE.search(str(node.wait["polls"]))
        if (named := _GET_ACTOR.search(str(node.wait["polls"]))) is not None:
            self._named_actor(node, named[1])
        failed = [
            actor
            for task in self._tasks.values()
            if called and task["state"] == "FAILED" and str(task["name"]).rpartition(".")[2] == called[1]
            if (actor := self._actors.get(task["actor_id"])) is not None and actor["state"] == "DEAD"
        ]
        if failed:
            dead = self._actor_node(failed[-1])
            node.activity = f"{node.activity.removesuffix(')')}; {dead.label} {dead.activity})"
            node.gone = "ended"

    def _ask_in_vain(self) -> None:
        """Loops that ask other actors for something, where all others are idle or wait: who has died does not do it."""
        seen = [node for node in self._nodes if not node.background]
        asking = [node for node in seen if node.wait.get("polls") and node.calls and not node.gone]
        others = [node for node in seen if not any(node is each for each in asking)]
        lost = dead_actors(self._ray)
        at_rest = all(node.waits or node.gone or node.kind == "idle" for node in others)
        if lost and at_rest and any(node.waits for node in others):
            for node in asking:
                node.activity, node.gone = f"{node.activity} at {node.place}; {'; '.join(lost)}", "ended"

    def _named_actor(self, node: Node, name: str) -> None:
        """A loop that asks for an actor by its name until there is one."""
        known = [actor for actor in self._ray["actors"] if actor["name"] == name]
        told = [f"{each.label} {each.activity}" for actor in known[-1:] for each in [self._actor_node(actor)]]
        if not any(actor["state"] == "ALIVE" for actor in known):
            why = told[0] if told else "Ray lists no actor of that name"
            node.activity, node.gone = f"{node.activity.removesuffix(')')}; {why})", "not_found"

    def _not_fetched(self, node: Node, awaited: Sequence[WaitFacts]) -> bool:
        """Whether the result of a task that has finished elsewhere is waited for: it must come from there."""
        places = {
            row["node_id"] for row in self._ray["workers"] if self._place(row["node_id"], row["pid"]) == node.id[:2]
        }
        # A host can have several nodes; where Ray does not list the process, none of its host is far.
        own = places or {node_id for node_id, host in self._hosts.items() if host == node.id[0]}
        far = [task for task in awaited if task["state"] == "FINISHED" and task["node_id"] not in (None, *own)]
        if not far:
            return False
        task = far[0]
        lost_nodes = {each["node_id"] for each in self._ray["nodes"] if not each["alive"]}
        slow = ", and its result has not come from there: see the raylet and the network of that node"
        why = ", which Ray has lost" if task["node_id"] in lost_nodes else slow
        where = self._hosts.get(task["node_id"]) or task["node_id"]
        lost = f"{task['name']} has finished on node {where}{why}"
        node.wait = {**node.wait, "kind": "ray_get", "text": f"the result of {self._title(task)}", "lost": lost}
        return True

    def _not_a_task(self, node: Node) -> None:
        """Whether a placement group is ready is an object too, and Ray lists no task for it."""
        pending = [group for group in self._ray["placement_groups"] if group["state"] in ("PENDING", "RESCHEDULING")]
        told = [each for each in node.wait.get("groups") or [] if each]
        groups = [group for group in pending if any(group["placement_group_id"] in each for each in told)] or pending
        if groups:
            lacks = [f"{group_label(g)} is {g['state'].lower()}{self._resources.lack_of_group(g)}" for g in groups]
            ready = "a placement group to be ready" if len(groups) == 1 else "placement groups to be ready"
            node.wait = {**node.wait, "text": ready, "lost": "; ".join(lacks[:3])}
            self._explained |= {group["placement_group_id"] for group in groups}
            return
        lost = "Ray lists no unfinished task that it started: the object was made elsewhere, or is lost"
        node.wait = {**node.wait, "lost": lost}

    def _awaited(self, node: Node) -> Iterator[WaitFacts]:
        if node.wait.get("tasks"):
            # Ids, or from outside the bytes around them.
            told = node.wait["tasks"]
            known = [task for number, task in self._tasks.items() if any(number in each for each in told)]
            yield from known
            if known or min(map(len, told)) <= _ID_LENGTH:
                return
        if (called := _REMOTE.search(str(node.wait.get("name") or ""))) is not None:
            # Of an `await`, the source tells the function; in async actors Ray does not know who called it.
            named = [task for task in self._tasks.values() if str(task["name"]).rpartition(".")[2] == called[1]]
            yield from (task for task in named if task["state"] not in _DONE)
            return
        parents = {task["task_id"] for task in self._running(node)}
        for task in self._tasks.values():
            is_drivers = node.id[:2] in self._drivers and self._is_from_driver(task)
            made = task["type"] != _CREATION
            if made and (task["parent_task_id"] in parents or is_drivers) and task["state"] not in _DONE:
                yield task

    def _is_from_driver(self, task: WaitFacts) -> bool:
        parent = self._tasks.get(task["parent_task_id"])
        return task["type"] != "DRIVER_TASK" and (parent is None or parent["type"] == "DRIVER_TASK")

    def _running(self, node: Node) -> list[WaitFacts]:
        """The tasks that a worker runs; of several, those whose function is on the stack."""
        here = [
            task
            for task in self._tasks.values()
            if task["state"] == "RUNNING" and self._place(task["node_id"], task["worker_pid"]) == node.id[:2]
        ]
        named = [task for task in here if str(task["name"]).rpartition(".")[2] in node.functions]
        return named or here

    def _title(self, task: WaitFacts) -> str:
        name = str(task["name"])
        actor = self._actors.get(task["actor_id"])
        if actor is not None and actor["name"]:
            return f"{name} (actor {actor['name']})"
        return name

    def _queue(self, node: Node) -> None:
        """Why no visible process would end the wait: the actor has not started, or has died."""
        actor = queue_actor(node, self._ray)
        if actor is not None and actor["state"] not in ("ALIVE", "DEAD"):
            node.edges.append(Edge(self._actor_node(actor).id, "should keep its items"))
        else:
            node.wait = {**node.wait, "lost": "; ".join([str(node.wait["lost"]), *lost_users(self._ray)])}

    def _edges(self, task: WaitFacts) -> list[Edge]:
        actor = self._actors.get(task["actor_id"])
        method = str(task["name"]).rpartition(".")[2]
        if actor is not None and (creating := self._creating(actor)) is not None:
            again = f", which Ray has started again {times_restarted(actor)}" if times_restarted(actor) else ""
            return [Edge(creating.id, f"should run {method} and is still in its constructor{again}")]
        if actor is not None and actor["state"] != "ALIVE":
            return [Edge(self._actor_node(actor).id, f"should run {method}")]
        if task["state"] == "PENDING_ARGS_AVAIL":
            return [Edge(self._without_arguments(task).id, "is that task")]
        if task["state"] in ("RUNNING", "RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT") or actor is not None:
            pid = actor["pid"] if actor is not None else task["worker_pid"]
            node_id = actor["node_id"] if actor is not None else task["node_id"]
            runs = task["state"].startswith("RUNNING")
            target = self._worker(self._place(node_id, pid), method if runs else "")
            if target is not None and target.kind == "idle" and (begun := self._running(target)):
                paused = "which is suspended: a generator waits until its items are taken"
                target.activity = f"is still in {begun[0]['name']}, {paused}"
            keeps_ending = actor is None and _attempts(task)
            target = target or (self._task_node(task) if keeps_ending else self._unseen(task, pid))
            if runs and _LOOP_THREAD in target.label and target.waits and method not in target.functions:
                return [Edge(target.id, f"blocks the event loop of its actor, so {method} cannot begin")]
            return [Edge(target.id, f"runs {method}" if runs else self._queued(method, task, target))]
        return [Edge(self._task_node(task).id, "is that task")]

    def _queued(self, method: str, task: WaitFacts, target: Node) -> str:
        """The part of what an actor runs in a call that it has not begun: it runs others, as many as it can at once."""
        others = [
            str(other["name"]).rpartition(".")[2]
            for other in self._tasks.values()
            if other["actor_id"] and other["actor_id"] == task["actor_id"] and other["state"].startswith("RUNNING")
        ]
        if target.id[2:] == ("main",) or not others:
            behind = f"another call of {method}" if others == [method] else str(others[0]) if others else ""
            return f"should run {method}" + (f" (queued behind {behind})" if len(others) == 1 else "")
        own = self._by_process.get(target.id[:2], [])
        if any("task" not in node.id and node.id[2:] != ("main",) and not node.background for node in own):
            # A thread of its own runs code of the user: it may be the event loop's, which is blocked then.
            return f"keeps its actor from {method}"
        self._full.add(target.id[:2])
        calls = f"the {len(others)} calls" if len(others) > 1 else "the call"
        return f"is one of {calls} that its actor runs, as many as max_concurrency allows: {method} is queued"

    def _unseen(self, task: WaitFacts, pid: Any) -> Node:
        """A worker that could not be inspected; it explains nothing."""
        actor = self._actors.get(task["actor_id"])
        name = (actor["name"] or snake_case(str(actor["class_name"]).rpartition(".")[2])) if actor else task["name"]
        activity = "was not seen: it is still starting, or could not be looked at"
        label = f"{name} (pid {pid})" if pid else str(name)
        node = Node(("ray_worker", task["task_id"]), label, wait={"kind": "unknown"}, activity=activity)
        return self._added.setdefault(node.id, node)

    def _worker(self, process: tuple[Any, Any], method: str) -> Node | None:
        """The asyncio task or thread that runs a method, else what waits there, else the main thread."""
        own = self._by_process.get(process, [])
        # Threads of libraries have functions of the same names.
        users = [node for node in own if not node.background]
        running = [node for node in users if method and method in node.functions]
        order = (lambda n: "task" in n.id, lambda n: n.waits, lambda n: True)
        loops = [node for node in own if node.kind == "event_loop" or _LOOP_THREAD in node.label]
        mains = [node for node in own if node.id[2:] == ("main",)]
        for choice in (running, [node for node in users if node.waits], loops or mains or own[:1]):
            for test in order:
                if found := next(filter(test, choice), None):
                    return found
        return None

    def _creating(self, actor: WaitFacts) -> Node | None:
        """What runs the constructor of an actor that has not finished it."""
        if actor["state"] not in ("PENDING_CREATION", "RESTARTING"):
            return None
        for task in self._tasks.values():
            if task["type"] == _CREATION and task["actor_id"] == actor["actor_id"] and "RUNNING" in task["state"]:
                found = self._worker(self._place(task["node_id"], task["worker_pid"]), "__init__")
                return None if found is None or found.gone else found
        # For a restarted constructor Ray lists the process but no task.
        found = self._worker(self._place(actor["node_id"], actor["pid"]), "__init__")
        return found if found is not None and "__init__" in found.functions and not found.gone else None

    def _actor_node(self, actor: WaitFacts) -> Node:
        label = f"actor {actor['name'] or str(actor['class_name'])}"
        state, gone = actor["state"], ""
        if state == "DEAD":
            gone, activity = "died", f"has died: {death_cause(actor)}"
        elif state == "DEPENDENCIES_UNREADY":
            gone, activity = "not_ready", "cannot start: an argument of its constructor is not ready"
        elif state == "RESTARTING":
            ends = "its process keeps ending, and the log of its worker says why"
            again = f" (started again {times} so far): {ends}" if (times := times_restarted(actor)) else ""
            gone, activity = "restarting", f"is restarting{again}{self._resources.lack(actor['required_resources'])}"
        else:
            gone, activity = _schedule(self._resources.lack_of(actor))
        return self._not_running(("ray_actor", actor["actor_id"]), label, activity, gone)

    def _task_node(self, task: WaitFacts) -> Node:
        state = str(task["state"])
        if state == "PENDING_NODE_ASSIGNMENT":
            gone, activity = _schedule(self._resources.lack_of(task))
        else:
            gone, activity = "", f"has not begun ({state})"
        if (times := _attempts(task)) and not gone:
            again = "once" if times == 1 else f"{times} times"
            gone = "restarting"
            activity = f"was started again {again} so far: its process keeps ending, and the log of its worker says why"
        return self._not_running(("ray_task", task["task_id"]), f"task {task['name']}", activity, gone)

    def _not_running(self, identity: Id, label: str, activity: str, gone: str) -> Node:
        """An actor or task without a process. One that is on its way to a worker is not a reason for a hang."""
        node = Node(identity, label, wait={} if gone else {"kind": "unknown"}, activity=activity, gone=gone)
        return self._added.setdefault(node.id, node)

    def _without_arguments(self, task: WaitFacts) -> Node:
        """A task whose arguments are made by others that the same caller started before it."""
        wait = {"kind": "ray_task", "text": "its arguments"}
        node = Node(("ray_task", task["task_id"]), f"task {task['name']}", wait=wait)
        if node.id in self._added:
            return self._added[node.id]
        self._added[node.id] = node
        others = [
            other
            for other in self._tasks.values()
            if other["parent_task_id"] == task["parent_task_id"]
            and other is not task
            and other["state"] not in (*_DONE, "PENDING_ARGS_AVAIL")
            and other["type"] not in ("DRIVER_TASK", _CREATION)
        ]
        edges = [edge for other in others for edge in self._edges(other)]
        # The process that waits for the task does not produce its arguments.
        asking = {each.id for each in self._nodes if each.waits and task in self._awaited(each)}
        node.edges += [
            Edge(edge.target, f"{edge.relation}, which may make them") for edge in edges if edge.target not in asking
        ]
        if not node.edges:
            node.wait = {**wait, "lost": "they are not ready, and Ray lists no unfinished task of its caller"}
        return node

    def _unwaited(self) -> Iterator[Node]:
        """Actors and placement groups that cannot start and that no process waits for yet."""
        for actor in self._ray["actors"]:
            if actor["state"] in ("PENDING_CREATION", "DEPENDENCIES_UNREADY") and (
                ("ray_actor", actor["actor_id"]) not in self._added and self._creating(actor) is None
            ):
                node = self._actor_node(actor)
                self._added.pop(node.id)
                if "has not started yet" in node.activity:
                    continue
                node.wait = {"kind": "ray_task", "text": "resources", "lost": node.activity}
                yield node
        for group in self._ray["placement_groups"]:
            if group["state"] == "PENDING" and group["placement_group_id"] not in self._explained:
                label = group_label(group)
                lack = f"it is pending{self._resources.lack_of_group(group)}"
                yield Node(("ray_group", label), label, wait={"kind": "ray_task", "text": "resources", "lost": lack})


def _state(node: Node) -> str:
    """What a node does, in a sentence that has named it."""
    return clause(node).replace(node.label, "it", 1)


def _schedule(lack: str) -> tuple[str, str]:
    """Whether an actor or task without a process cannot get one, in one word and in a sentence."""
    if lack:
        return "not_scheduled", f"cannot be scheduled{lack}"
    return "", "has not started yet: Ray starts a process for it"


def _attempts(task: WaitFacts) -> int:
    """How often Ray has started a task again."""
    return int(task.get("attempt_number") or 0)
