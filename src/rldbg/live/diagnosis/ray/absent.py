"""Actors and tasks of Ray without a process that was seen: why they have none, as nodes of the wait graph."""

from typing import Any

from rldbg.agent import snake_case
from rldbg.live.diagnosis.graph.wait_graph import Id, Node, WaitFacts
from rldbg.live.diagnosis.ray.deaths import death_cause, exit_of, times_restarted
from rldbg.live.diagnosis.ray.resources import RayResources
from rldbg.live.diagnosis.ray.view import RayView


class AbsentWorkers:
    """`added` are the nodes that were made for them."""

    def __init__(self, view: RayView, resources: RayResources) -> None:
        self._view = view
        self._resources = resources
        self.added: dict[Any, Node] = {}

    def actor_node(self, actor: WaitFacts) -> Node:
        label = f"actor {actor['name'] or str(actor['class_name'])}"
        state, gone = actor["state"], ""
        if state == "DEAD":
            gone, activity = "died", f"has died: {death_cause(actor)}"
        elif state == "DEPENDENCIES_UNREADY":
            gone, activity = "not_ready", "cannot start: an argument of its constructor is not ready"
        elif state == "RESTARTING" and (lack := self._resources.lack_of(actor)):
            ended = f"{exit_of(actor, self._view.ray) or 'its process has ended'} and it " if actor["pid"] else ""
            gone, activity = "not_scheduled", f"{ended}cannot be scheduled again{lack}"
        elif state == "RESTARTING":
            how = exit_of(actor, self._view.ray).removeprefix("its process has ended").strip(" ()")
            ends = f"its process keeps ending{f' ({how})' if how else ''}, and the log of its worker says why"
            again = f" (started again {times} so far): {ends}" if (times := times_restarted(actor)) else ""
            gone, activity = "restarting", f"is restarting{again}"
        else:
            gone, activity = _schedule(self._resources.lack_of(actor))
        return self._not_running(("ray_actor", actor["actor_id"]), label, activity, gone)

    def task_node(self, task: WaitFacts) -> Node:
        state = str(task["state"])
        if state == "PENDING_NODE_ASSIGNMENT":
            gone, activity = _schedule(self._resources.lack_of(task))
        else:
            gone, activity = "", f"has not begun ({state})"
        if (times := attempts(task)) and not gone:
            again = "once" if times == 1 else f"{times} times"
            gone = "restarting"
            activity = f"was started again {again} so far: its process keeps ending, and the log of its worker says why"
        return self._not_running(("ray_task", task["task_id"]), f"task {task['name']}", activity, gone)

    def _not_running(self, identity: Id, label: str, activity: str, gone: str) -> Node:
        """An actor or task without a process. One that is on its way to a worker is not a reason for a hang."""
        node = Node(identity, label, wait={} if gone else {"kind": "unknown"}, activity=activity, gone=gone)
        return self.added.setdefault(node.id, node)

    def unseen(self, task: WaitFacts, pid: Any) -> Node:
        """A worker that could not be inspected; it explains nothing."""
        actor = self._view.actors.get(task["actor_id"])
        name = (actor["name"] or snake_case(str(actor["class_name"]).rpartition(".")[2])) if actor else task["name"]
        activity = "was not seen: it is still starting, or could not be looked at"
        label = f"{name} (pid {pid})" if pid else str(name)
        node = Node(("ray_worker", task["task_id"]), label, wait={"kind": "unknown"}, activity=activity)
        return self.added.setdefault(node.id, node)


def _schedule(lack: str) -> tuple[str, str]:
    """Whether an actor or task without a process cannot get one, in one word and in a sentence."""
    if lack:
        return "not_scheduled", f"cannot be scheduled{lack}"
    return "", "has not started yet: Ray starts a process for it"


def attempts(task: WaitFacts) -> int:
    """How often Ray has started a task again."""
    return int(task.get("attempt_number") or 0)
