"""One finding per cause of a hang: the root in one sentence, then who waits because of it."""

from collections.abc import Iterable, Sequence

from rldbg.live.diagnosis.hang import HangDiagnosis
from rldbg.live.diagnosis.wait_graph import Node, WaitGraph
from rldbg.live.diagnosis.wait_words import clause, sentence

SLOW = "it is running: this may be slow, not a hang; look again later and compare the line"
_FIXES = {
    "computing": SLOW,
    "busy": SLOW,
    "cuda": "the GPU may be at work: this may be slow, not a hang; look again later and compare the line",
}
_SAME_ORDER = "make all ranks call the same collectives in the same order"
_RING_FIXES = {
    "lock": "take the locks in the same order everywhere, or one lock for both",
    "file_lock": "take the locks in the same order everywhere, or one lock for both",
    "collective": _SAME_ORDER,
    "cuda": _SAME_ORDER,
    "ray_get": "do not call ray.get on an actor that can call back: await in async actors, or return the reference",
}
_NOUNS = {"queue_get": "queue", "queue_put": "queue", "queue_join": "queue", "collective": "collective"} | {
    each: each for each in ("lock", "event", "condition", "semaphore", "barrier", "future")
}
# What a wait that nobody will end is called.
_NEVER = {
    "lock": "never_released",
    "native_lock": "never_released",
    "semaphore": "never_released",
    "connection_pool": "never_released",
    "queue_get": "never_filled",
    "queue_put": "never_emptied",
    "queue_join": "never_marked_done",
    "event": "never_set",
    "store": "never_set",
    "condition": "never_notified",
    "future": "never_completed",
    "barrier": "never_reached",
    "data_loader": "worker_ended",
    "rendezvous": "never_joined",
    "lock_file": "stale_lock_file",
} | dict.fromkeys(("pipe", "socket", "stream", "message", "fifo"), "no_peer")
# Waits of ranks for each other.
_COMMON = frozenset({"collective", "cuda", "rendezvous"})
_AT_IT = ("runs ", "works for ", "should ")
# Nobody takes a sleep of this length for a hang.
_SHORT_SLEEP_S = 60.0
_WHOLE = frozenset({"is awaited", "is that process", "is that thread", "is at the other end", "should complete it"})
_MOST_LISTED = 4


def causes_of(ways: Sequence[Sequence[Node]], graph: WaitGraph) -> list[HangDiagnosis]:
    return [_cause(each, graph) for each in _told_once(ways)]


def _told_once(ways: Sequence[Sequence[Node]]) -> list[list[Sequence[Node]]]:
    """Groups paths whose sentences differ only in who waits."""
    found: dict[str, list[Sequence[Node]]] = {}
    for way in ways:
        found.setdefault(sentence(way).removeprefix(way[0].label), []).append(way)
    return list(found.values())


def _cause(ways: Sequence[Sequence[Node]], graph: WaitGraph) -> HangDiagnosis:
    way, nodes = ways[0], graph.nodes.values()
    last = way[-1]
    ring = len(way) > 1 and last is way[0]
    roots = [each if ring else _root(each) for each in ways]
    root = roots[0]
    told = {node.id for each in roots for node in each}
    alike = [node for node in nodes if node.id not in told and not node.background and _same_wait(node, root[0])]
    others = [*(other[0] for other in roots[1:]), *alike]
    told |= {node.id for node in others}
    blamed = (node for each in ways for node in (each if ring else each[-1:]))
    ranks = tuple(sorted({node.rank for node in blamed if node.rank is not None}))
    kind = _kind(way, ring=ring)
    fix = _fix(way, kind, ring=ring)
    where = "" if ranks else ", ".join(dict.fromkeys(node.label for node in (*root, *others)))
    same = _alike_text(root[0], others, whole=len(ways) == 1)
    left = [node for node in nodes if node.id not in told]
    same += _elsewhere(last, left) if len(way) > 1 else ""
    return HangDiagnosis(
        sentence(root) + same, kind, ranks, _consequences(told, left, graph), (fix,) if fix else (), where
    )


def _root(way: Sequence[Node]) -> Sequence[Node]:
    """The end of a path, from the last line of the user's code that waits for it; who waits further away is listed
    below it."""
    begins = max((n for n, node in enumerate(way[:-1]) if node.place), default=0)
    return way[begins:]


def _kind(way: Sequence[Node], *, ring: bool) -> str:
    last = way[-1]
    if ring:
        return "deadlock"
    if last.gone:
        return last.gone
    if last.wait.get("lost"):
        return "not_woken" if last.wait.get("completed") else _NEVER.get(last.kind, last.kind)
    if last.wait.get("polls"):
        # A polling loop may be normal, unless another process waits for it.
        return "polling" if len(way) > 1 else "unknown"
    if last.kind == "sleep" and len(way) > 1 and _sleeps_again(last) and _completes(way[-2], last):
        return "busy"
    return last.kind or "busy"


def _fix(way: Sequence[Node], kind: str, *, ring: bool) -> str:
    if not ring:
        return _FIXES.get(kind, "")
    if len(way) == 2 and way[0].kind == "lock":
        return "do not call what takes the lock while holding it, or make it a reentrant lock (RLock)"
    return _RING_FIXES.get(way[0].kind, "") if len({node.kind for node in way}) == 1 else ""


def _alike_text(first: Node, others: Sequence[Node], *, whole: bool) -> str:
    if not others:
        return ""
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    verb = "waits" if len(others) == 1 else "wait"
    how = f"for the same {_NOUNS[first.kind]}" if whole and first.kind in _NOUNS else "in the same way"
    return f"; {', '.join(node.label for node in others[:3])}{more} {verb} {how}"


def _same_wait(node: Node, other: Node) -> bool:
    """Whether two wait for the same object of a process, or in the same collective."""
    if node.kind != other.kind or not node.waits:
        return False
    if node.kind in _COMMON:
        return all(node.wait.get(each) == other.wait.get(each) for each in ("op", "group", "peer", "call"))
    return bool(node.wait.get("key")) and node.id[:2] == other.id[:2] and node.wait["key"] == other.wait.get("key")


def _consequences(told: set[tuple[object, ...]], others: Iterable[Node], graph: WaitGraph) -> tuple[str, ...]:
    """Who waits for one of those that are told, directly or through others; the main threads first."""
    waiting = [node for node in others if node.waits and not node.background]
    waiting = [node for node in waiting if any(each.id in told for each in graph.onward(node))]
    waiting.sort(key=lambda node: node.id[2:] != ("main",))
    listed = [clause(node) for node in waiting[:_MOST_LISTED]]
    if len(waiting) <= 1:
        return tuple(f"because of that {each}" for each in listed)
    more = len(waiting) - len(listed)
    return (f"{len(waiting)} others wait because of that:", *listed, *([f"and {more} more"] if more else []))


def _sleeps_again(node: Node) -> bool:
    """Not in one long sleep: it was woken between two looks, or its sleep ends soon."""
    delay_s = node.wait.get("delay_s")
    return bool(node.wait.get("again")) or (delay_s is not None and delay_s <= _SHORT_SLEEP_S)


def _completes(waiting: Node, other: Node) -> bool:
    """Whether the wait ends with what the other does as a whole: whoever sleeps again and again is at it."""
    edges = [edge for edge in waiting.edges if edge.target == other.id]
    return any(edge.passes or edge.relation.startswith(_AT_IT) or edge.relation in _WHOLE for edge in edges)


def _elsewhere(last: Node, others: Sequence[Node]) -> str:
    """Ranks that do something else while one polls: what it looks for may depend on them."""
    mains = [node for node in others if node.rank is not None and node.id[2:] == ("main",) and not node.waits]
    if not last.wait.get("polls") or last.rank is None or not mains:
        return ""
    return "; meanwhile " + " and ".join(clause(node) for node in mains[:2])
