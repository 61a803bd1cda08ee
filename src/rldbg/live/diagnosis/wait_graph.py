"""Who waits for whom in a job: threads, asyncio tasks, processes and Ray tasks as nodes, waits as edges.

Following the edges from anything that waits leads to a ring (a deadlock) or to somebody who does not wait: what that
one does instead is the reason. Everything here is plain data made by `rldbg.agent.waits` and by Ray's state API.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WaitFacts = Mapping[str, Any]
Id = tuple[Any, ...]
_DEPTH = 12
# Nobody is expected to end these; they matter only where somebody waits for the one who is in them.
RESTING = frozenset(
    {"sleep", "computing", "unknown", "event_loop", "signal", "debugger", "holds_gil", "idle", "serving"}
)


@dataclass
class Node:
    """Something that can wait: `label` names it, `place` is its line, `wait` what it waits for, if anything.

    `activity` is what it does where it does not wait. `background` threads run no code of the user; a library started
    the task that `serves`."""

    id: Id
    label: str
    place: str = ""
    wait: WaitFacts = field(default_factory=dict)
    activity: str = ""
    background: bool = False
    rank: int | None = None
    gone: bool = False
    functions: frozenset[str] = frozenset()
    connections: frozenset[int] = frozenset()
    serves: bool = False
    edges: "list[Edge]" = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.wait.get("kind") or "")

    @property
    def waits(self) -> bool:
        return bool(self.wait) and self.kind not in RESTING


@dataclass(frozen=True)
class Edge:
    """`relation` says what the target has to do with the wait: "holds it", "should put an item in"."""

    target: Id
    relation: str


class WaitGraph:
    """All nodes of a job by id; `ways` are the paths that explain waits, most telling first."""

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
                    # Rings that share somebody have one cause.
                    if not met & (members := {node.id for node in ring}):
                        met |= members
                        yield ring
                    break
                path.append(following)

    def _next(self, node: Node, path: Sequence[Node]) -> Node | None:
        """Whom to follow: back into the path (a ring), else somebody gone, else somebody who waits, else anybody."""
        if len(path) > _DEPTH or not node.waits:
            return None
        targets = [self.nodes[edge.target] for edge in node.edges if edge.target in self.nodes]
        order = (lambda each: each in path, lambda each: each.gone, lambda each: each.waits, lambda _: True)
        return next((each for test in order for each in targets if test(each)), None)

    def onward(self, start: Node) -> list[Node]:
        """Those whom a node waits for, one after the other; itself at the end of a ring."""
        path = [start]
        while (following := self._next(path[-1], path)) is not None and following not in path:
            path.append(following)
        return [*path[1:], start] if following is start else path[1:]

    def ways(self) -> list[tuple[Node, ...]]:
        """One path per cause: rings first (closed by their first node), then causes by how much hangs on them."""
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
        # A server that nobody connects to is idle: that explains something only where nothing else does.
        found = [path for path in found if len(path) > 1 or not _accepts(path[0])] or found
        told = {node.id for path in found for node in path}
        polling = [node for node in self.nodes.values() if node.wait.get("polls") and node.id[2:] == ("main",)]
        return [*found, *((node,) for node in polling if found and node.id not in told)]


def _cause(last: Node) -> Id:
    """Whoever waits for the same object of a process, or the same process group, does so for one reason."""
    lost, key = last.wait.get("lost"), last.wait.get("key")
    if lost and last.kind == "rendezvous":
        return last.kind, lost
    return (*last.id[:2], last.kind, key, lost) if lost and key else last.id


def _accepts(node: Node) -> bool:
    file = node.wait.get("file") or {}
    return node.kind == "socket" and bool(file.get("local")) and not file.get("peer")


def _without_overview(path: tuple[Node, ...]) -> tuple[Node, ...]:
    """Without those at the beginning who wait for many at once, or only started the others."""
    while len(path) > 1 and path[1].waits and path[0].kind != "collective":
        many = len({edge.target for edge in path[0].edges}) > 1
        if not many and (path[0].kind != "child" or len(path) == 2):
            break
        path = path[1:]
    return path


def _weight(path: Sequence[Node], all_paths: Sequence[Sequence[Node]]) -> tuple[Any, ...]:
    """What hangs on a cause; somebody gone explains more than somebody who merely waits for input."""
    last = path[-1]
    idle = last.waits and last.kind in ("queue_get", "event", "socket", "pipe") and not last.wait.get("lost")
    main = any(node.label == "the main thread" or node.id[-1] == "main" for each in all_paths for node in each)
    return (not last.gone and not last.wait.get("lost"), idle and len(all_paths) == 1 and not main, -len(all_paths))
