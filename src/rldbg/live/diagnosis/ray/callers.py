"""A wait inside of an actor that a call of one of its methods would end: who calls it, and why nobody does."""

from rldbg.live.diagnosis.graph.lost_waits import DUTIES
from rldbg.live.diagnosis.graph.wait_graph import Edge, Id, Node, WaitFacts
from rldbg.live.diagnosis.graph.wait_words import clause, listed, place_text
from rldbg.live.diagnosis.ray.absent import AbsentWorkers
from rldbg.live.diagnosis.ray.arguments import DONE
from rldbg.live.diagnosis.ray.deaths import death_cause, died_unasked
from rldbg.live.diagnosis.ray.queues import lost_users
from rldbg.live.diagnosis.ray.view import CREATION, RayView

_NORMAL = "NORMAL_TASK"


class MethodCallers:
    def __init__(self, view: RayView, absent: AbsentWorkers) -> None:
        self._view = view
        self._absent = absent

    def explain(self, node: Node) -> None:
        """What would end the wait is a method of the actor: who calls it, and who may have called it and is gone."""
        methods = {str(each).partition(":")[0] for each in node.wait["functions"]}
        others = [each for each in self._view.nodes if each.id[:2] != node.id[:2] and each.calls & methods]
        # Who waits for an answer of this process has called it already.
        others = [each for each in others if all(edge.target[:2] != node.id[:2] for edge in each.edges)]
        node.edges += [
            Edge(other.id, f"should call {sorted(other.calls & methods)[0]}")
            for other in others
            if not other.background
        ]
        if gone := self._gone_beside(node.edges, sorted(methods)):
            node.edges, node.wait = [], {**node.wait, "lost": gone}
            return
        node.edges += self._edges_to_later(node, methods) if not node.edges else []
        node.edges += self._edges_to_queued(node, methods) if not node.edges else []
        node.edges += self._edges_to_running(node, methods) if not node.edges else []
        node.edges += self._edges_to_absent(node, methods) if not node.edges else []
        full = f"{' and '.join(sorted(methods))} cannot be called either: its actor runs as many calls as it can"
        reasons = (
            [full]
            if node.id[:2] in self._view.full
            else [
                *self._missing_callers(node, methods),
                *self._ended_callers(node, methods),
                *lost_users(self._view.ray, str(node.wait.get("lost") or "")),
            ]
        )
        lost = "; ".join([*filter(None, [str(node.wait.get("lost") or "")]), *reasons])
        node.wait = {**node.wait, "lost": lost if not node.edges else ""}

    def explain_loop(self, node: Node) -> None:
        """A loop in a method of an actor, where what it looks at is changed only by another one that is queued behind
        it."""
        changed = node.wait["unchanged"]
        methods = {str(each).partition(":")[0] for each in changed["functions"]}
        calls = [task for task in self._view.tasks.values() if self._is_call_of(task, node)]
        running = {_method(task) for task in calls if task["state"].startswith("RUNNING")}
        queued = [task for task in calls if _method(task) in methods and is_queued(task)]
        if not queued or not running & node.functions or running & methods:
            return
        behind = sorted(running & node.functions)[0]
        part = (
            f"should run {_method(queued[0])} (it has been called, is queued behind {behind}, and would change "
            f"`{changed['name']}`)"
        )
        node.wait = {"kind": "change", "loop": node.wait["polls"]}
        node.edges = [Edge(node.id, part)]

    def _gone_beside(self, edges: list[Edge], methods: list[str]) -> str:
        """Actors that have died, of the class of those that call one of the methods and only poll or wait now: what is
        missing is the calls of the others."""
        callers = [each for each in self._view.nodes if each.id in {edge.target for edge in edges}]
        if not callers or not all(each.waits or each.wait.get("polls") for each in callers):
            return ""
        dead = [actor for actor in self._alike({each.id[:2] for each in callers}) if actor["state"] == "DEAD"]
        if not dead:
            return ""
        actor, state = dead[0], _state(callers[0])
        why = death_cause(actor) if died_unasked(actor) else "it was ended on purpose (ray.kill, or no handle was left)"
        also = f"; {len(dead) - 1} more of its class too" if len(dead) > 1 else ""
        return (
            f"actor {actor['name'] or actor['class_name']} (pid {actor['pid']}), of the class that calls "
            f"{' or '.join(methods)}, has died: {why}{also}; {callers[0].label}, which lives: {state}"
        )

    def _edges_to_later(self, node: Node, methods: set[str]) -> list[Edge]:
        """Who comes to one of the methods only after what it waits for, which is of this process."""
        return [
            Edge(each.id, f"calls {method} only afterwards ({place_text(each.calls_later[method])})")
            for each in self._view.nodes
            for method in sorted(methods & each.calls_later.keys())[:1]
            if each.id[:2] != node.id[:2] and any(edge.target[:2] == node.id[:2] for edge in each.edges)
        ]

    def _edges_to_queued(self, node: Node, methods: set[str]) -> list[Edge]:
        """Who waits for one of the methods, which the actor has not begun, as it runs as many calls as it can."""
        duty = DUTIES[node.kind][1]
        return [
            Edge(each.id, f"has called {method}, which would {duty} and is queued")
            for each in self._view.nodes
            for edge in each.edges
            for method in methods
            if edge.target[:2] == node.id[:2] and edge.relation.endswith(queued_text(method))
        ]

    def _edges_to_running(self, node: Node, methods: set[str]) -> list[Edge]:
        """The calls that the actor runs, itself among them, while one that leads to one of the methods is queued behind
        them: it waits for itself, unless one of them goes on."""
        calls = [task for task in self._view.tasks.values() if self._is_call_of(task, node)]
        running = [_method(task) for task in calls if task["state"].startswith("RUNNING")]
        own = self._view.by_process.get(node.id[:2], [])
        seen = [each for each in own if each.functions & {*running} and not each.background]
        leading = (methods | {*(node.wait.get("leading") or ())}) - node.functions
        queued = [task for task in calls if _method(task) in leading and is_queued(task)]
        if not queued or node not in seen or len(seen) < len(running):
            return []
        method, duty = _method(queued[0]), DUTIES[node.kind][1]
        through = f"leads to {' or '.join(sorted(methods))} and " if method not in methods else ""
        behind = f"the {len(running)} calls that its actor runs" if len(running) > 1 else running[0]
        part = f"should run {method} (it has been called, is queued behind {behind}, {through}would {duty})"
        return [Edge(each.id, part) for each in seen]

    def _is_call_of(self, task: WaitFacts, node: Node) -> bool:
        """Whether a task is a call of the actor in whose process a node is."""
        actor = self._view.actors.get(task["actor_id"])
        made = task["type"] != CREATION
        return made and actor is not None and self._view.process_of(actor) == node.id[:2]

    def _missing_callers(self, node: Node, methods: set[str]) -> list[str]:
        """Actors of the same class as those that wait in one of the methods, which do something else."""
        waiting = self._waiting_in(node, methods)
        alive = [actor for actor in self._alike(waiting) if actor["state"] == "ALIVE"]
        fronts = [self._view.worker(self._view.place(actor["node_id"], actor["pid"]), "") for actor in alive]
        method = " or ".join(sorted(methods))
        return [f"{front.label} has not called {method}: {_state(front)}" for front in fronts[:3] if front is not None]

    def _ended_callers(self, node: Node, methods: set[str]) -> list[str]:
        """Actors of the same class as those that wait in one of the methods, which were told to end."""
        alike = [actor for actor in self._alike(self._waiting_in(node, methods)) if actor["state"] == "DEAD"]
        names = [str(actor["name"] or actor["class_name"]) for actor in alike if not died_unasked(actor)]
        have = "was" if len(names) == 1 else "were"
        who = f"of the class that calls {' or '.join(sorted(methods))}"
        return (
            [f"{listed(sorted(names))}, {who}, {have} ended on purpose (ray.kill, or no handle was left)"]
            if names
            else []
        )

    def _edges_to_absent(self, node: Node, methods: set[str]) -> list[Edge]:
        """Actors and tasks of the same kind as those that wait in one of the methods, which have not come there because
        they have no process or wait themselves."""
        waiting = self._waiting_in(node, methods)
        absent = [each for actor in self._alike(waiting) if (each := self._stuck(actor)) is not None]
        here = {t["name"] for t in self._view.running_in(waiting) if t["type"] == _NORMAL}
        absent += [
            self._absent.task_node(task)
            for task in self._view.tasks.values()
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
            for each in self._view.nodes
            if any(edge.target[:2] == node.id[:2] and edge.relation in runs for edge in each.edges)
        }

    def _alike(self, processes: set[Id]) -> list[WaitFacts]:
        """Other actors of the classes that run in these processes."""
        places = {actor["actor_id"]: self._view.process_of(actor) for actor in self._view.ray["actors"]}
        classes = {actor["class_name"] for actor in self._view.ray["actors"] if places[actor["actor_id"]] in processes}
        every = [actor for actor in self._view.ray["actors"] if actor["class_name"] in classes]
        return [actor for actor in every if places[actor["actor_id"]] not in processes]

    def _stuck(self, actor: WaitFacts) -> Node | None:
        """What keeps an actor from its work: it has no process, or waits in its constructor or elsewhere."""
        if (process := self._view.process_of(actor)) is not None:
            found = self._view.worker(process, "__init__")
            return found if found is not None and found.waits else None
        again = [each for each in self._view.ray["actors"] if each["name"] and each["name"] == actor["name"]]
        return self._absent.actor_node(actor) if again in ([], [actor]) and died_unasked(actor) else None


def is_queued(task: WaitFacts) -> bool:
    """Whether an actor has been asked for a call and has not begun it; not one that was asked for only now."""
    return not (task["state"] in DONE or task["state"].startswith("RUNNING") or task.get("anew"))


def _method(task: WaitFacts) -> str:
    return str(task["name"]).rpartition(".")[2]


def queued_text(method: str) -> str:
    return f" while {method} is queued"


def _state(node: Node) -> str:
    """What a node does, in a sentence that has named it."""
    return clause(node).replace(node.label, "it", 1)
