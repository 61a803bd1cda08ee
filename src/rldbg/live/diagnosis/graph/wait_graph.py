"""Who waits for whom in a job: threads, asyncio tasks, processes and Ray tasks as nodes, waits as edges.

Following the edges from a waiting node leads to a cycle (a deadlock) or to a node that does not wait: what it does
instead is the cause. Everything here is plain data made by `rldbg.agent.waits` and by Ray's state API.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WaitFacts = Mapping[str, Any]
Id = tuple[Any, ...]
_DEPTH = 12
# Nobody takes a sleep of this length for a hang.
_SHORT_SLEEP_S = 60.0
# Parts of who is waited for as a whole, until it ends.
JOINS = frozenset({"is awaited", "is that process", "is that thread", "has not ended"})
# How the part of who has the other end of a queue begins, and does something else from where it is.
NOT_ABOUT_TO = "has the other end of the queue, but runs no code that would"
# And that of who gives work to who takes one item after the other; who it is follows.
FEEDS = "its items come from"
# How it is told that who would act does not any more, or never will.
_GONE = ("ended", "died", "failed", "raised", "cancelled", "not there", "afterwards", "skips", "is seen", "under")
# Waits that any one of those who could end them ends.
_ANY = frozenset({"queue_get", "queue_put", "event", "condition", "semaphore"})
# These waits are normal; they matter only if another node waits for the node that is in them.
RESTING = frozenset(
    {"sleep", "computing", "unknown", "event_loop", "signal", "debugger", "holds_gil", "idle", "serving", "in_vain"}
)


@dataclass
class Node:
    """Something that can wait: `label` names it, `place` is its line (a library's, if not `users_line`), `wait` what it
    waits for, if anything; it waits `in_own_line` if it has called no library from there.

    `activity` is what it does where it does not wait; `gone`, in one word, why it will not continue. `background`
    threads run no code of the user; a library started the task that `serves`; `calls` are methods of Ray actors that
    its current functions call, `calls_later` those that they will call, and where, `gives` those of their calls that
    were given results of others. `stopped_as` is what the debugger calls it while it is stopped; `writes` are
    descriptors that they will write to; it `may_send` to others, not known yet; `route` is how a rank came to where it
    is, `enters` the lines of its files that enter collectives, by their names; `asks`, what its loop asks Ray for in
    each look; `answers`, what it does for others with each item that it takes in a loop, None where it takes none;
    `job` tells ranks of several jobs apart."""

    id: Id
    label: str
    place: str = ""
    wait: WaitFacts = field(default_factory=dict)
    activity: str = ""
    background: bool = False
    rank: int | None = None
    job: str = ""
    gone: str = ""
    functions: frozenset[str] = frozenset()
    connections: frozenset[int] = frozenset()
    serves: bool = False
    users_line: bool = True
    in_own_line: bool = False
    may_send: bool = False
    calls: frozenset[str] = frozenset()
    calls_later: Mapping[str, WaitFacts] = field(default_factory=dict)
    gives: Sequence[WaitFacts] = ()
    enters: Mapping[str, Sequence[WaitFacts]] = field(default_factory=dict)
    asks: str = ""
    stopped_as: str = ""
    writes: frozenset[int] = frozenset()
    route: Sequence[WaitFacts] = ()
    answers: Sequence[WaitFacts] | None = None
    edges: "list[Edge]" = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.wait.get("kind") or "")

    @property
    def waits(self) -> bool:
        return bool(self.wait) and self.kind not in RESTING


@dataclass(frozen=True)
class Edge:
    """`relation` is the target's part in the wait: "holds it", "should put an item in". A part that `passes` is over as
    soon as the target goes on; `skipped` says what made it leave out its part."""

    target: Id
    relation: str
    passes: bool = False
    skipped: str = ""


class WaitGraph:
    """All nodes of a job by id; `ways` are the paths that explain waits, most informative first."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.id: node for node in nodes}
        self._moving = self._that_move()
        # Not by helpers of libraries, as the process that removes shared memory at the end of the others.
        self._awaited = {edge.target for node in self.nodes.values() if not node.background for edge in node.edges}

    def _that_move(self) -> dict[Id, int]:
        """Nodes that do something, and those whose wait one of these will end, with the number of waits in between; any
        of several ends a wait that any can end."""
        found = {node.id: 0 for node in self.nodes.values() if _is_at_work(node)}
        size = -1
        while len(found) > size:
            size = len(found)
            for node in self.nodes.values():
                ends = [found.get(edge.target) for edge in node.edges if edge.target in self.nodes]
                told = [each for each in ends if each is not None]
                if node.waits and node.id not in found and told and (node.kind in _ANY or len(told) == len(ends)):
                    found[node.id] = 1 + (min(told) if node.kind in _ANY else max(told))
        return found

    def _rings(self) -> Iterator[tuple[Node, ...]]:
        """Nodes that wait for each other, in the order of waiting; each ring once."""
        met: set[Id] = set()
        for start in self.nodes.values():
            path = [start]
            while (following := self._next(path[-1], path)) is not None:
                if following in path:
                    ring = tuple(path[path.index(following) :])
                    # Cycles that share a node have one cause.
                    if not met & (members := {node.id for node in ring}):
                        met |= members
                        yield ring
                    break
                path.append(following)

    def _next(self, node: Node, path: Sequence[Node]) -> Node | None:
        """The next node of a path: one already in it (a cycle), else one that has ended, else one that waits, else
        any."""
        if len(path) > _DEPTH or not node.waits:
            return None
        targets = [self.nodes[edge.target] for edge in node.edges if edge.target in self.nodes]
        moving = [each for each in targets if each.id in self._moving and each not in path]
        if node.kind in _ANY and moving and not any(each.gone for each in targets):
            # Others that wait, for this one or for whom it waits, do not keep it waiting.
            return min(moving, key=lambda each: self._moving[each.id])
        order = (lambda each: each in path, lambda each: each.gone, lambda each: each.waits, lambda _: True)
        return next((each for test in order for each in targets if test(each)), None)

    def idles(self, node: Node) -> bool:
        """Whether it waits for its next piece of work, for which nobody waits: it takes one after the other, and who
        has the other end is not about to give it any."""
        given = [edge.relation for edge in node.edges]
        if node.kind != "queue_get" or not node.wait.get("endless"):
            return False
        if not given:
            # It is known by name who gives it work, and nobody of them is gone.
            lost = str(node.wait.get("lost") or "")
            alive = bool(node.wait.get("functions")) and not any(word in lost for word in _GONE)
            return alive and node.id not in self._awaited and node.id[2:] != ("main",)
        return node.id not in self._awaited and all(each.startswith((NOT_ABOUT_TO, FEEDS)) for each in given)

    def works_elsewhere(self, node: Node) -> bool:
        """Whether another process does something by itself."""
        return any(not far and identity[:2] != node.id[:2] for identity, far in self._moving.items())

    def runs_beside(self, node: Node) -> bool:
        """Whether another thread or task runs, computes or works slowly, in any process."""
        others = (each for each in self.nodes.values() if each is not node and not each.background and not each.gone)
        return any((each.kind in ("", "computing") and not each.waits) or works_slowly(each.wait) for each in others)

    def onward(self, start: Node) -> list[Node]:
        """The path of nodes that a node waits for; a cycle ends with the node itself."""
        path = [start]
        while (following := self._next(path[-1], path)) is not None and following not in path:
            path.append(following)
        return [*path[1:], start] if following is start else path[1:]

    def ways(self) -> list[tuple[Node, ...]]:
        """One path per cause: cycles first (closed by their first node), then by how many nodes depend on the cause."""
        rings = list(self._rings())
        explained = {node.id for ring in rings for node in ring}
        by_end: dict[Any, list[tuple[Node, ...]]] = {}
        for start in self.nodes.values():
            if not start.waits or start.background or start.id in explained:
                continue
            path = [start, *self.onward(start)]
            if any(node.id in explained for node in path):
                continue
            by_end.setdefault(_cause(path[-1]), []).append(self._without_helpers(_without_overview(tuple(path))))
        # An idle worker explains a hang only if nothing else does.
        asked = {end: paths for end, paths in by_end.items() if not all(self.idles(path[0]) for path in paths)}
        by_end = asked if asked or rings else by_end
        longest = [max(paths, key=lambda path: (len(path), path[0].rank is not None)) for paths in by_end.values()]
        longest.sort(key=lambda path: _weight(path, by_end[_cause(path[-1])]))
        found = [*((*ring, ring[0]) for ring in rings), *longest]
        # An idle server explains a hang only if nothing else does.
        found = [path for path in found if len(path) > 1 or not _accepts(path[0])] or found
        # So does a loop whose tasks all wait: what they wait for is told.
        found = [path for path in found if path[-1].kind != "event_loop" or not self._is_told(path[-1], found)]
        told = {node.id for path in found for node in path}
        mains = (node for node in self.nodes.values() if node.id[2:] == ("main",) and not node.background)
        polling = (node for node in mains if node.wait.get("polls") and node.id not in told)
        return [*found, *((node,) for node in polling if found)]

    def _without_helpers(self, path: tuple[Node, ...]) -> tuple[Node, ...]:
        """Drops who takes or puts one item after the other at the start, and whom nobody waits for: a thread or task
        beside the main one, or an idle process. It has nothing to do because of the others."""
        while len(path) > 1 and path[1].waits and path[0].id not in self._awaited:
            works = path[0].wait.get("endless") or path[0].kind == "queue_put"
            helps = path[0].id[2:] != ("main",) and works
            if not helps and not self.idles(path[0]):
                break
            path = path[1:]
        return path

    @staticmethod
    def _is_told(loop: Node, paths: Sequence[Sequence[Node]]) -> bool:
        """Whether the cause of a path is a task of this event loop which nobody will wake, or that waits in a ring."""
        causes = [node for path in paths for node in (path if path[0] is path[-1] else path[-1:])]
        own = [node for node in causes if node.id[:2] == loop.id[:2] and "task" in node.id]
        return any(node.waits for node in own)


def _is_at_work(node: Node) -> bool:
    """Whether it goes on by itself: it runs, computes, or sleeps for a while without looking for anything."""
    if node.waits or node.gone or node.background or node.wait.get("polls"):
        return False
    return node.kind in ("", "computing") or (node.kind == "sleep" and sleeps_again(node.wait))


def sleeps_again(wait: WaitFacts) -> bool:
    """Not in one long sleep: it was woken between two looks, or its sleep ends soon."""
    delay_s = wait.get("delay_s")
    return bool(wait.get("again")) or (delay_s is not None and delay_s <= _SHORT_SLEEP_S)


def works_slowly(wait: WaitFacts) -> bool:
    """Whether it sleeps shortly in each round of a loop that comes to its end: something is done, slowly."""
    return wait.get("kind") == "sleep" and bool(wait.get("counted")) and not wait.get("polls") and sleeps_again(wait)


def sleeps_long(wait: WaitFacts) -> bool:
    """In one sleep that is known to last."""
    return wait.get("delay_s") is not None and not sleeps_again(wait)


def _cause(last: Node) -> Id:
    """Nodes that wait for the same object of a process, or the same process group, have one cause."""
    lost, key = last.wait.get("lost"), last.wait.get("key")
    if lost and (last.kind == "rendezvous" or last.wait.get("disagree")):
        return last.kind, lost
    if lost and last.wait.get("shared"):
        return last.id[0], last.kind, last.wait["shared"]
    # What each of those who wait for a condition looks for is told with it.
    return (*last.id[:2], last.kind, key, "" if last.kind == "condition" else lost) if lost and key else last.id


def _accepts(node: Node) -> bool:
    file = node.wait.get("file") or {}
    return node.kind == "socket" and bool(file.get("local")) and not file.get("peer")


def _without_overview(path: tuple[Node, ...]) -> tuple[Node, ...]:
    """Drops nodes at the start that wait for many at once, or only started the others."""
    while len(path) > 1 and path[1].waits and path[0].kind != "collective":
        many = len({edge.target for edge in path[0].edges}) > 1
        # A process of another language has no line: who started it has.
        if not many and (path[0].kind != "child" or len(path) == 2 or not path[1].place):
            break
        path = path[1:]
    return path


def _weight(path: Sequence[Node], all_paths: Sequence[Sequence[Node]]) -> tuple[Any, ...]:
    """How much a cause explains; a node that has ended explains more than one that waits for input."""
    last = path[-1]
    idle = last.waits and last.kind in ("queue_get", "event", "socket", "pipe") and not last.wait.get("lost")
    main = any(node.label == "the main thread" or node.id[-1] == "main" for each in all_paths for node in each)
    return (not last.gone and not last.wait.get("lost"), idle and len(all_paths) == 1 and not main, -len(all_paths))
