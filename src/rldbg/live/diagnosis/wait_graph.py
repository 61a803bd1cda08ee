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
# These waits are normal; they matter only if another node waits for the node that is in them.
RESTING = frozenset(
    {"sleep", "computing", "unknown", "event_loop", "signal", "debugger", "holds_gil", "idle", "serving"}
)


@dataclass
class Node:
    """Something that can wait: `label` names it, `place` is its line (a library's, if not `users_line`), `wait` what it
    waits for, if anything.

    `activity` is what it does where it does not wait; `gone`, in one word, why it will not continue. `background`
    threads run no code of the user; a library started the task that `serves`; `calls` are methods of Ray actors that
    its current functions call. `stopped_as` is what the debugger calls it while it is stopped;
    `writes` are descriptors that they will write to."""

    id: Id
    label: str
    place: str = ""
    wait: WaitFacts = field(default_factory=dict)
    activity: str = ""
    background: bool = False
    rank: int | None = None
    gone: str = ""
    functions: frozenset[str] = frozenset()
    connections: frozenset[int] = frozenset()
    serves: bool = False
    users_line: bool = True
    calls: frozenset[str] = frozenset()
    stopped_as: str = ""
    writes: frozenset[int] = frozenset()
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
    soon as the target goes on."""

    target: Id
    relation: str
    passes: bool = False


class WaitGraph:
    """All nodes of a job by id; `ways` are the paths that explain waits, most informative first."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.id: node for node in nodes}

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
        order = (lambda each: each in path, lambda each: each.gone, lambda each: each.waits, lambda _: True)
        return next((each for test in order for each in targets if test(each)), None)

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
            by_end.setdefault(_cause(path[-1]), []).append(_without_overview(tuple(path)))
        longest = [max(paths, key=lambda path: (len(path), path[0].rank is not None)) for paths in by_end.values()]
        longest.sort(key=lambda path: _weight(path, by_end[_cause(path[-1])]))
        found = [*((*ring, ring[0]) for ring in rings), *longest]
        # An idle server explains a hang only if nothing else does.
        found = [path for path in found if len(path) > 1 or not _accepts(path[0])] or found
        told = {node.id for path in found for node in path}
        mains = (node for node in self.nodes.values() if node.id[2:] == ("main",) and not node.background)
        polling = (node for node in mains if node.wait.get("polls") and node.id not in told)
        return [*found, *((node,) for node in polling if found)]


def sleeps_again(wait: WaitFacts) -> bool:
    """Not in one long sleep: it was woken between two looks, or its sleep ends soon."""
    delay_s = wait.get("delay_s")
    return bool(wait.get("again")) or (delay_s is not None and delay_s <= _SHORT_SLEEP_S)


def sleeps_long(wait: WaitFacts) -> bool:
    """In one sleep that is known to last."""
    return wait.get("delay_s") is not None and not sleeps_again(wait)


def _cause(last: Node) -> Id:
    """Nodes that wait for the same object of a process, or the same process group, have one cause."""
    lost, key = last.wait.get("lost"), last.wait.get("key")
    if lost and last.kind == "rendezvous":
        return last.kind, lost
    if lost and last.wait.get("shared"):
        return last.id[0], last.kind, last.wait["shared"]
    return (*last.id[:2], last.kind, key, lost) if lost and key else last.id


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
