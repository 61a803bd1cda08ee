"""One finding per cause of a hang: the root in one sentence, then who waits because of it."""

import re
from collections.abc import Iterable, Sequence

from rldbg.live.diagnosis.graph.wait_graph import FEEDS, JOINS, Node, WaitGraph, sleeps_long, works_slowly
from rldbg.live.diagnosis.graph.wait_words import clause, listed, loop_text, sentence, thing, told_nodes
from rldbg.live.diagnosis.hang import CORRECT_WHAT_WAS_RAISED, HangDiagnosis
from rldbg.live.diagnosis.ranks.rank_nodes import uneven_rounds
from rldbg.live.diagnosis.waits import one_sided

SLOW = "it is running: this may be slow, not a hang; look again later and compare the line"
_FIXES = {
    "computing": SLOW,
    "busy": SLOW,
    "not_listed": "look again in a few seconds: a wait that stays the same is named then",
    "disagreement": "make all ranks pass the same root (src= or dst=): decide on it with what all of them know",
    "cuda": "the GPU may be at work: this may be slow, not a hang; look again later and compare the line",
}
_FLUSH = "flush after each message: file.flush(), print(..., flush=True), or python -u for a whole program"
_OWN_CLIENT = (
    "give the thread that waits a store of its own (TCPStore(..., is_master=False)), or wait in one thread only"
)
_SAME_ORDER = "make all ranks call the same collectives in the same order"
_RING_FIXES = {
    "lock": "take the locks in the same order everywhere, or use one lock",
    "file_lock": "take the locks in the same order everywhere, or use one lock",
    "collective": _SAME_ORDER,
    "cuda": _SAME_ORDER,
    "ray_get": "do not call ray.get on an actor that can call back: await in async actors, or return the reference",
}
_NOUNS = {
    "queue_get": "queue",
    "queue_turn": "queue",
    "queue_put": "queue",
    "queue_join": "queue",
    "collective": "collective",
} | {each: each for each in ("lock", "event", "condition", "semaphore", "barrier", "future")}
# What a wait that nobody will end is called.
_NEVER = {
    "lock": "never_released",
    "native_lock": "never_released",
    "semaphore": "never_released",
    "connection_pool": "never_released",
    "queue_get": "never_filled",
    "queue_turn": "never_released",
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
_AT_IT = ("runs ", "belongs to the pool", "is a child process that", "should ")
_JOINED = JOINS | {"should complete it"}
_WHOLE = _JOINED | {"is at the other end", "is named in it"}
_NUMBER = re.compile(r"\d+")
_MOST_LISTED = 4


def causes_of(ways: Sequence[Sequence[Node]], graph: WaitGraph) -> list[HangDiagnosis]:
    groups = _told_once(ways)
    first: dict[object, int] = {}
    more: dict[int, list[Node]] = {}
    for number, group in enumerate(groups):
        last = group[0][-1]
        by = first.setdefault(_would_act(last) or number, number)
        if by != number and len(group[0]) == 1:
            more.setdefault(by, []).append(last)
    told = {node.id for nodes in more.values() for node in nodes}
    own = [(number, group) for number, group in enumerate(groups) if len(group[0]) > 1 or group[0][0].id not in told]
    return [_cause(group, graph, more.get(number, ())) for number, group in own]


def _would_act(node: Node) -> object:
    """The functions of a process that would end a wait and that nobody runs, where someone who ran them has ended, or
    that drop answers: all waits that they would end have one cause."""
    functions = frozenset(str(each).partition(":")[0] for each in node.wait.get("functions") or ())
    lost = bool(functions) and (node.wait.get("drops") or "has ended" in str(node.wait.get("lost")))
    return (*node.id[:2], functions) if lost else None


def _told_once(ways: Sequence[Sequence[Node]]) -> list[list[Sequence[Node]]]:
    """Groups paths whose sentences differ only in who waits, or in the numbers of those on the way. One who only waits
    as the last of another path does is told with that."""
    found: dict[tuple[object, ...], list[Sequence[Node]]] = {}
    ends: dict[object, tuple[object, ...]] = {}
    for way in sorted(ways, key=lambda way: len(way) == 1):
        ring = len(way) > 1 and way[-1] is way[0]
        root = way if ring else _root(way)
        alike = tuple((_NUMBER.sub("#", node.label), node.place, _does(node)) for node in told_nodes(root))
        key: tuple[object, ...] = (sentence(way).removeprefix(way[0].label),) if ring else alike
        if not ring:
            key = ends.setdefault(alike[-1], key) if len(way) == 1 else key
            ends.setdefault(alike[-1], key)
        found.setdefault(key, []).append(way)
    first = {id(way): number for number, way in enumerate(ways)}
    return sorted(found.values(), key=lambda group: min(first[id(way)] for way in group))


def _does(node: Node) -> str:
    return f"{thing(node.wait)} {node.wait.get('lost')}" if node.waits else node.activity


def _cause(ways: Sequence[Sequence[Node]], graph: WaitGraph, same_cause: Sequence[Node] = ()) -> HangDiagnosis:
    way, nodes = ways[0], graph.nodes.values()
    last = way[-1]
    ring = len(way) > 1 and last is way[0]
    roots = [each if ring else _root(each) for each in ways]
    root = roots[0]
    told = {node.id for each in roots for node in each}
    same = last if last.waits and not ring else root[0]
    alike = [node for node in nodes if node.id not in told and not node.background and _same_wait(node, same)]
    # Those who disagree are told already.
    alike = [node for node in alike if not node.wait.get("disagree")]
    others = sorted([*(other[0] for other in roots[1:]), *alike], key=lambda node: _in_order(node.label))
    told |= {node.id for node in others}
    raised = _raised_before_the_gpu(way)
    blamed = [raised] if raised else (node for each in ways for node in (each if ring else each[-1:]))
    ranks = tuple(last.wait.get("disagree") or sorted({node.rank for node in blamed if node.rank is not None}))
    kind = _kind(way, ring=ring)
    if not ring and graph.works_elsewhere(last):
        # Who is at work may do what the loop looks for, or make or remove the file.
        looks_at_files = bool(last.wait.get("lock_file") or last.wait.get("awaits_files"))
        kind = "busy" if kind == "in_vain" else "possible" if kind == "polling" and looks_at_files else kind
    if kind == "polling" and last.wait.get("progresses") and graph.runs_beside(last):
        # What it collects may come from who runs.
        kind = "possible"
    fix = _fix(way, kind, ring=ring)
    where = "" if ranks else listed(list(dict.fromkeys(node.label for node in (*told_nodes(root), *others))))
    text = f"; {common}" if ring and (common := _common_side(way)[0]) else ""
    text += _alike_text(same, others, whole=len(ways) == 1)
    woken, to_all = _woken_in_vain([same, *others])
    text, fix = text + woken, fix or to_all
    left = [node for node in nodes if node.id not in told]
    text += _elsewhere(last, left) if len(way) > 1 else ""
    # Who only waits has nothing to do; the root of a wait without a counterpart may have failed to ask.
    acting = [node for each in ways for node in (each if ring or len(each) == 1 else each[1:])]
    asking = {(*each, "main") for node in acting for each in node.wait.get("asked_by") or ()}
    return HangDiagnosis(
        sentence(root) + text,
        kind,
        ranks,
        consequences(told, left, graph, same_cause),
        (fix,) if fix else (),
        where,
        actors=frozenset(node.id for node in acting) | asking,
        told=frozenset(node.id for each in ways for node in each),
    )


def _root(way: Sequence[Node]) -> Sequence[Node]:
    """The end of a path, from the last line of the user's code that waits for it; who waits further away is listed
    below it. So is who waits for the end of the last one as a whole, where that waits itself and has not left out its
    part."""
    begins = max((n for n, node in enumerate(way[:-1]) if node.place and not node.background), default=0)
    last = way[-1]
    if last.wait.get("fallen"):
        # Who waits for it does so only for its own next item.
        return way[-1:]
    parts = [edge for edge in way[-2].edges if edge.target == last.id] if len(way) > 1 else []
    joined = any(edge.relation in _JOINED and not edge.skipped for edge in parts)
    if joined and last.waits and last.place and last.users_line and not last.background:
        return way[-1:]
    return way[begins:]


def _in_order(label: str) -> list[object]:
    """Names with numbers in the order of the numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", label)]


def _kind(way: Sequence[Node], *, ring: bool) -> str:
    last = way[-1]
    if ring:
        return _NEVER.get(last.kind, "deadlock") if any(map(_feeds, way)) else "deadlock"
    if _raised_before_the_gpu(way) is not None:
        return "raised"
    if last.gone:
        return last.gone
    if last.wait.get("disagree"):
        return "disagreement"
    if last.wait.get("polls"):
        # A polling loop may be normal, unless another process waits for it.
        return "polling" if len(way) > 1 else "possible"
    if last.wait.get("time_limit"):
        return "possible"
    if last.wait.get("unclear"):
        return str(last.wait["unclear"])
    if last.wait.get("lost"):
        return "not_woken" if last.wait.get("completed") else _NEVER.get(last.kind, last.kind)
    if works_slowly(last.wait):
        return "busy"
    if last.kind == "sleep" and len(way) > 1 and not sleeps_long(last.wait) and _completes(way[-2], last):
        return "not_woken" if way[-2].wait.get("met") else "busy"
    return last.kind or "busy"


def _feeds(node: Node) -> bool:
    """Whether it waits for its next item, which another of the ring gives it."""
    return any(edge.relation.startswith(FEEDS) for edge in node.edges)


def _raised_before_the_gpu(way: Sequence[Node]) -> Node | None:
    """The rank that handles an exception in a collective for which another, whose GPU does not finish, never came: what
    its GPU waits for is a collective that the exception skipped."""
    if way[-1].kind != "cuda":
        return None
    return next((node for node in way[:-1] if node.kind == "collective" and node.wait.get("handles")), None)


def _fix(way: Sequence[Node], kind: str, *, ring: bool) -> str:
    if not ring and (who := way[-1].stopped_as):
        return f"inspect it: rldbg attach {who}; resume it: rldbg continue {who}"
    if any(node.wait.get("unflushed") for node in way):
        return _FLUSH
    if any(node.kind == "store_turn" for node in way):
        return _OWN_CLIENT
    if any(node.wait.get("handles") for node in way if ring or kind == "raised"):
        return CORRECT_WHAT_WAS_RAISED
    if not ring:
        return _FIXES.get(kind, "")
    if apart := _common_side(way)[1]:
        return apart
    if len(way) == 2 and way[0].kind == "lock":
        return "do not call what takes the lock while holding it, or make it a reentrant lock (RLock)"
    return _RING_FIXES.get(way[0].kind, "") if len({node.kind for node in way}) == 1 else ""


def _common_side(ring: Sequence[Node]) -> tuple[str, str]:
    uneven = uneven_rounds(ring)
    return (
        uneven
        if any(uneven)
        else one_sided(str(node.wait.get("op")) if node.kind == "collective" else "" for node in ring)
    )


def _alike_text(first: Node, others: Sequence[Node], *, whole: bool) -> str:
    if not others:
        return ""
    how = f"for the same {_NOUNS[first.kind]}" if whole and first.kind in _NOUNS else "in the same way"
    loops: dict[str, list[str]] = {}
    for node in others:
        # Who waits for the same condition may wait for something else to hold.
        loop = str(node.wait.get("until") or "") if first.kind == "condition" else ""
        other = loop and loop != first.wait.get("until")
        loops.setdefault(loop_text(node.wait) if other else "", []).append(node.label)
    return "".join(
        f"; {listed(labels)} {'waits' if len(labels) == 1 else 'wait'} {how}{loop}" for loop, labels in loops.items()
    )


def _woken_in_vain(waiting: Sequence[Node]) -> tuple[str, str]:
    """Of those who wait for one condition, some for what is so already and some for something else: a notification that
    wakes one may have woken the other. With what to do."""
    first = waiting[0]
    loops = {str(node.wait.get("until")) for node in waiting}
    one = [str(each).partition(":") for each in first.wait.get("wakes_one") or ()]
    if first.kind != "condition" or not one or len(loops) < 2 or not any(node.wait.get("met") for node in waiting):
        return "", ""
    names = " and ".join(f"{name} (line {line})" for name, _, line in one[:2])
    calls = "calls" if len(one) == 1 else "call"
    return (
        f"; {names} {calls} notify(), which wakes one of them only: if its own loop goes on, the notification is lost",
        "use notify_all(), or a condition of its own for each of these loops",
    )


def _same_wait(node: Node, other: Node) -> bool:
    """Whether two wait for the same object of a process, or in the same collective."""
    if node.kind != other.kind or not node.waits:
        return False
    if node.kind in _COMMON:
        return node.job == other.job and all(
            node.wait.get(each) == other.wait.get(each) for each in ("op", "group", "peer", "call")
        )
    if node.wait.get("shared"):
        return bool(node.wait["shared"] == other.wait.get("shared") and node.id[0] == other.id[0])
    return bool(node.wait.get("key")) and node.id[:2] == other.id[:2] and node.wait["key"] == other.wait.get("key")


def consequences(
    told: set[tuple[object, ...]], others: Iterable[Node], graph: WaitGraph, same_cause: Sequence[Node] = ()
) -> tuple[str, ...]:
    """Who waits for one of those that are told, directly or through others, or for the `same_cause`; the main threads
    first."""
    told = told | {node.id for node in same_cause}
    waiting = [node for node in others if node.waits and not node.background]
    waiting = [node for node in waiting if node in same_cause or any(each.id in told for each in graph.onward(node))]
    waiting = [node for node in waiting if not graph.idles(node)]
    waiting.sort(key=lambda node: (node.id[2:] != ("main",), _in_order(node.label)))
    if len(waiting) <= 1:
        return tuple(f"because of that {clause(node)}" for node in waiting)
    alike: dict[str, list[Node]] = {}
    for node in waiting:
        alike.setdefault(clause(node).removeprefix(node.label), []).append(node)
    lines = [_together(nodes) for nodes in alike.values()]
    more = sum(map(len, list(alike.values())[_MOST_LISTED:]))
    shown = [*lines[:_MOST_LISTED], *([f"and {more} more"] if more else [])]
    return (f"{len(waiting)} others wait because of that:", *shown)


def _together(nodes: Sequence[Node]) -> str:
    first = nodes[0]
    words = clause(first).removeprefix(first.label)
    if len(nodes) == 1:
        return f"{first.label}{words}"
    return f"{listed([node.label for node in nodes])}{words.replace(' waits', ' wait', 1)}"


def _completes(waiting: Node, other: Node) -> bool:
    """Whether the wait ends with what the other does as a whole: whoever sleeps, and not for long, may be at it."""
    edges = [edge for edge in waiting.edges if edge.target == other.id]
    return any(edge.passes or edge.relation.startswith(_AT_IT) or edge.relation in _WHOLE for edge in edges)


def _elsewhere(last: Node, others: Sequence[Node]) -> str:
    """Ranks that do something else while one polls: what it looks for may depend on them."""
    mains = [node for node in others if node.rank is not None and node.id[2:] == ("main",) and not node.waits]
    if not last.wait.get("polls") or last.rank is None or not mains:
        return ""
    return "; meanwhile " + " and ".join(clause(node) for node in mains[:2])
