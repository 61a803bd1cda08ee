"""Ray in the wait graph: `ray.get` waits for tasks, and these wait for workers or resources."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rldbg.agent import Message
from rldbg.agent.waits import RAYS_LOOP
from rldbg.live.diagnosis.graph.lost_waits import DUTIES
from rldbg.live.diagnosis.graph.wait_graph import Edge, Node, WaitFacts
from rldbg.live.diagnosis.ray.absent import AbsentWorkers, attempts
from rldbg.live.diagnosis.ray.arguments import DONE, ITSELF, Arguments, as_maker
from rldbg.live.diagnosis.ray.callers import MethodCallers, queued_text
from rldbg.live.diagnosis.ray.deaths import raised_text, times_restarted
from rldbg.live.diagnosis.ray.lasting import why_not_listed
from rldbg.live.diagnosis.ray.polling import REMOTE, PollingLoops, is_one_call
from rldbg.live.diagnosis.ray.queues import QueueTables, dead_actors, finished_users, lost_users, queue_actor
from rldbg.live.diagnosis.ray.resources import RayResources, group_label
from rldbg.live.diagnosis.ray.view import CREATION, RayView

_ID_LENGTH = 48
# What can be the wait for a Ray task: in async actors it is a future of asyncio.
_MAY_WAIT_FOR_RAY = frozenset({"ray_get", "future", "task", "condition", "event"})


def join_ray(nodes: list[Node], stacks: Sequence[Message], ray: Mapping[str, Any]) -> list[Node]:
    return _Joining(nodes, stacks, ray).joined()


class _Joining:
    def __init__(self, nodes: list[Node], stacks: Sequence[Message], ray: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._stacks = stacks
        self._ray = ray
        self._resources = RayResources(ray)
        self._view = RayView(nodes, ray)
        self._absent = AbsentWorkers(self._view, self._resources)
        self._explained: set[Any] = set()

    def joined(self) -> list[Node]:
        self._note_failures()
        polling = PollingLoops(self._nodes, self._stacks, self._ray, self._absent.actor_node)
        polling.mark()
        for node in self._nodes:
            if node.wait.get("between") == "ray" and not node.edges:
                self._queue(node)
            elif node.waits and node.kind in _MAY_WAIT_FOR_RAY and not node.edges:
                self._connect(node)
        callers = MethodCallers(self._view, self._absent)
        for node in self._nodes:
            node.edges += self._edges_to_pending(node) if node.wait.get("lost") and not node.edges else []
            if node.wait.get("functions") and node.kind in DUTIES and not node.edges:
                callers.explain(node)
            elif node.wait.get("polls") and node.wait.get("unchanged") and not node.edges:
                callers.explain_loop(node)
            elif node.kind == "lock" and node.wait.get("lost") and node.wait.get("takers"):
                lost = [str(node.wait["lost"]), *dead_actors(self._ray)]
                node.wait = {**node.wait, "lost": "; ".join(lost)}
        polling.explain()
        return [*self._nodes, *self._absent.added.values(), *self._unwaited()]

    def _note_failures(self) -> None:
        """Why an actor is idle: its last task has failed, which Ray remembers."""
        for actor in (actor for actor in self._ray["actors"] if actor["state"] == "ALIVE"):
            own = [task for task in self._view.tasks.values() if task["actor_id"] == actor["actor_id"]]
            failed = [task for task in own if task["state"] == "FAILED" and task.get("error_message")]
            for node in (
                self._view.by_process.get(self._view.place(actor["node_id"], actor["pid"]), []) if failed else ()
            ):
                if node.kind == "idle" and "raised" not in node.activity:
                    raised = raised_text(str(failed[-1]["error_message"]))
                    node.activity += f"; its {str(failed[-1]['name']).rpartition('.')[2]} has failed: {raised}"

    def _connect(self, node: Node) -> None:
        awaited = list(self._awaited(node))
        if not awaited and node.kind != "ray_get":
            return
        pending = [task for task in awaited if task["state"] not in DONE]
        if not pending and not (awaited and self._not_fetched(node, awaited)):
            self._not_a_task(node)
        if not pending:
            return
        alone = not node.wait.get("tasks") and is_one_call(str(node.wait.get("name") or ""))
        several = f" (one of {len(pending)} in flight)" if alone else f" and {len(pending) - 1} more"
        more = several if len(pending) > 1 else ""
        text = f"the result of {self._view.title(pending[0])}{more}"
        node.wait = {**node.wait, "kind": "ray_get", "text": text, "lost": ""}
        for task in pending:
            node.edges += self._edges(task)

    def _not_fetched(self, node: Node, awaited: Sequence[WaitFacts]) -> bool:
        """Whether the result of a task that has finished elsewhere is waited for: it must come from there."""
        places = {
            row["node_id"]
            for row in self._ray["workers"]
            if self._view.place(row["node_id"], row["pid"]) == node.id[:2]
        }
        # A host can have several nodes; where Ray does not list the process, none of its host is far.
        own = places or {node_id for node_id, host in self._view.hosts.items() if host == node.id[0]}
        far = [task for task in awaited if task["state"] == "FINISHED" and task["node_id"] not in (None, *own)]
        if not far:
            return False
        task = far[0]
        lost_nodes = {each["node_id"] for each in self._ray["nodes"] if not each["alive"]}
        slow = ", and its result has not come from there: see the raylet and the network of that node"
        why = ", which Ray has lost" if task["node_id"] in lost_nodes else slow
        where = self._view.hosts.get(task["node_id"]) or task["node_id"]
        lost = f"{task['name']} has finished on node {where}{why}"
        node.wait = {**node.wait, "kind": "ray_get", "text": f"the result of {self._view.title(task)}", "lost": lost}
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
        node.wait = {**node.wait, **why_not_listed(node.wait)}

    def _awaited(self, node: Node) -> Iterator[WaitFacts]:
        if node.wait.get("tasks"):
            # Ids, or from outside the bytes around them.
            told = node.wait["tasks"]
            known = [task for number, task in self._view.tasks.items() if any(number in each for each in told)]
            yield from known
            if known or min(map(len, told)) <= _ID_LENGTH:
                return
        if (called := REMOTE.search(str(node.wait.get("name") or ""))) is not None:
            # Of an `await`, the source tells the function; in async actors Ray does not know who called it.
            named = [task for task in self._view.tasks.values() if str(task["name"]).rpartition(".")[2] == called[1]]
            yield from (task for task in named if task["state"] not in DONE)
            return
        parents = {task["task_id"] for task in self._view.running(node)}
        for task in self._view.tasks.values():
            is_drivers = node.id[:2] in self._view.drivers and self._view.is_from_driver(task)
            made = task["type"] != CREATION
            if made and (task["parent_task_id"] in parents or is_drivers) and task["state"] not in DONE:
                yield task

    def _queue(self, node: Node) -> None:
        """Why no visible process would end the wait: the actor has not started, or has died."""
        actor = queue_actor(node, self._ray)
        if actor is not None and actor["state"] not in ("ALIVE", "DEAD"):
            node.edges.append(Edge(self._absent.actor_node(actor).id, "should keep its items"))
        else:
            tables = QueueTables(node, self._stacks, self._ray)
            used = [*finished_users(node, self._ray, tables), *tables.others_ahead()]
            why = [*used, *self._raised(), *lost_users(self._ray)]
            node.edges += self._edges_to_unscheduled(node) if not why else []
            node.wait = {**node.wait, "lost": "" if node.edges else "; ".join([str(node.wait["lost"]), *why])}

    def _edges_to_unscheduled(self, node: Node) -> list[Edge]:
        """Actors that have calls in their queue and cannot start: nobody else is seen that would end the wait."""
        found = []
        for task in self._view.tasks.values():
            actor = self._view.actors.get(task["actor_id"])
            if actor is None or actor["state"] in ("ALIVE", "DEAD") or task["type"] == CREATION:
                continue
            target = self._absent.actor_node(actor)
            if target.gone in ("not_scheduled", "not_ready"):
                self._explained.add(actor["placement_group_id"])
                method, duty = str(task["name"]).rpartition(".")[2], DUTIES[node.kind][1]
                found.append(Edge(target.id, f"should run {method}, which may {duty}"))
        return found

    def _raised(self) -> list[str]:
        """Workers that are held, or have ended, for what they raised: Ray does not know that yet."""
        raised = {each.id[:2]: each for each in reversed(self._nodes) if each.gone == "raised"}
        return [f"{each.label} {each.activity}" for each in list(raised.values())[-2:]]

    def _edges(self, task: WaitFacts) -> list[Edge]:
        actor = self._view.actors.get(task["actor_id"])
        method = str(task["name"]).rpartition(".")[2]
        if actor is not None and (creating := self._view.creating(actor)) is not None:
            again = f", which Ray has started again {times_restarted(actor)}" if times_restarted(actor) else ""
            return [Edge(creating.id, f"should run {method} and is still in its constructor{again}")]
        if actor is not None and actor["state"] != "ALIVE":
            return [Edge(self._absent.actor_node(actor).id, f"should run {method}")]
        if task["state"] == "PENDING_ARGS_AVAIL":
            return [Edge(self._without_arguments(task).id, ITSELF)]
        if task["state"] in ("RUNNING", "RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT") or actor is not None:
            pid = actor["pid"] if actor is not None else task["worker_pid"]
            node_id = actor["node_id"] if actor is not None else task["node_id"]
            runs = task["state"].startswith("RUNNING")
            target = self._view.worker(self._view.place(node_id, pid), method if runs else "")
            if target is not None and target.kind == "idle" and (begun := self._view.running(target)):
                paused = "which is suspended: a generator waits until its items are taken"
                target.activity = f"is still in {begun[0]['name']}, {paused}"
            keeps_ending = actor is None and attempts(task)
            target = target or (self._absent.task_node(task) if keeps_ending else self._absent.unseen(task, pid))
            if runs and RAYS_LOOP in target.label and target.waits and method not in target.functions:
                return [Edge(target.id, f"blocks the event loop of its actor, so {method} cannot begin")]
            return [Edge(target.id, f"runs {method}" if runs else self._queued(method, task, target))]
        return [Edge(self._absent.task_node(task).id, ITSELF)]

    def _edges_to_pending(self, node: Node) -> list[Edge]:
        """Actors that have a call in their queue which leads to what ends the wait, and run another one."""
        duty = "set such a key" if node.kind == "store" else DUTIES.get(node.kind, ("", ""))[1]
        leading = set(node.wait.get("leading") or ()) if duty else set()
        found = []
        for task in self._view.tasks.values() if leading else ():
            actor, method = self._view.actors.get(task["actor_id"]), str(task["name"]).rpartition(".")[2]
            begun = task["state"] in DONE or task["state"].startswith("RUNNING")
            if actor is None or begun or method not in leading or self._view.process_of(actor) == node.id[:2]:
                continue
            found += [Edge(edge.target, f"{edge.relation}, which would {duty}") for edge in self._edges(task)]
        return found

    def _queued(self, method: str, task: WaitFacts, target: Node) -> str:
        """The part of what an actor runs in a call that it has not begun: it runs others, as many as it can at once."""
        others = [
            str(other["name"]).rpartition(".")[2]
            for other in self._view.tasks.values()
            if other["actor_id"] and other["actor_id"] == task["actor_id"] and other["state"].startswith("RUNNING")
        ]
        if target.id[2:] == ("main",) or not others:
            behind = f"another call of {method}" if others == [method] else str(others[0]) if others else ""
            return f"should run {method}" + (f" (queued behind {behind})" if len(others) == 1 else "")
        own = self._view.by_process.get(target.id[:2], [])
        if any("task" not in node.id and node.id[2:] != ("main",) and not node.background for node in own):
            # A thread of its own runs code of the user: it may be the event loop's, which is blocked then.
            return f"keeps its actor from {method}"
        self._view.full.add(target.id[:2])
        slots = f"one of the {len(others)} slots" if len(others) > 1 else "the only slot"
        return f"has {slots} of its actor (max_concurrency){queued_text(method)}"

    def _without_arguments(self, task: WaitFacts) -> Node:
        """A task whose arguments are made by others."""
        wait = {"kind": "ray_task", "text": "its arguments"}
        node = Node(("ray_task", task["task_id"]), f"task {task['name']}", wait=wait)
        if node.id in self._absent.added:
            return self._absent.added[node.id]
        self._absent.added[node.id] = node
        callers = [each for each in self._nodes if each.gives and self._view.has_started(each, task)]
        arguments = Arguments(task, list(self._view.tasks.values()))
        given, certain = arguments.given([call for each in callers for call in each.gives])
        # The process that waits for the task does not produce its arguments, as far as its variables do not tell it.
        asking = {each.id for each in self._nodes if not given and each.waits and task in self._awaited(each)}
        for other in given or arguments.may_be_given():
            edges = [edge for edge in self._edges(other) if edge.target not in asking]
            node.edges += [Edge(edge.target, as_maker(edge.relation, certain=certain)) for edge in edges]
        if not node.edges:
            node.wait = {**wait, "lost": f"they are not ready, and Ray {arguments.untold()}"}
        return node

    def _unwaited(self) -> Iterator[Node]:
        """Actors and placement groups that cannot start and that no process waits for yet."""
        for actor in self._ray["actors"]:
            if actor["state"] in ("PENDING_CREATION", "DEPENDENCIES_UNREADY") and (
                ("ray_actor", actor["actor_id"]) not in self._absent.added and self._view.creating(actor) is None
            ):
                node = self._absent.actor_node(actor)
                self._absent.added.pop(node.id)
                if "has not started yet" in node.activity:
                    continue
                node.wait = {"kind": "ray_task", "text": "resources", "lost": node.activity}
                yield node
        for group in self._ray["placement_groups"]:
            if group["state"] == "PENDING" and group["placement_group_id"] not in self._explained:
                label = group_label(group)
                lack = f"it is pending{self._resources.lack_of_group(group)}"
                yield Node(("ray_group", label), label, wait={"kind": "ray_task", "text": "resources", "lost": lack})
