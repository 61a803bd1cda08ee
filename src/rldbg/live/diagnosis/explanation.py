"""Why a job hangs: from its collectives if ranks wait in them, else from the wait graph; one sentence per cause."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rldbg.agent import Message
from rldbg.agent.waits import mark_moved
from rldbg.live.diagnosis.hang import HangDiagnosis
from rldbg.live.diagnosis.nccl_ranks import join_nccl, nccl_errors
from rldbg.live.diagnosis.rank_nodes import UNNAMED, join_ranks
from rldbg.live.diagnosis.stack_groups import diagnose_stacks, raised_frames, users_frame
from rldbg.live.diagnosis.wait_graph import Node, WaitGraph
from rldbg.live.diagnosis.wait_nodes import AT_THE_MOMENT, nodes_of
from rldbg.live.diagnosis.wait_words import clause, sentence

_SENTENCES = 20
LOOKS_APART_S = 1.0
_SLOW = "it is running: this may be slow, not a hang; look again later and compare the line"
_FIXES = {
    "computing": _SLOW,
    "busy": _SLOW,
    "cuda": "the GPU may be at work: this may be slow, not a hang; look again later and compare the line",
}
_SAME_ORDER = "make all ranks call the same collectives in the same order"
_RING_FIXES = {
    "lock": "take the locks in the same order everywhere, or one lock for both",
    "collective": _SAME_ORDER,
    "cuda": _SAME_ORDER,
    "ray_get": "do not call ray.get on an actor that can call back: await in async actors, or return the reference",
}


# Counters of collectives say more about these waits than stacks.
_IN_COLLECTIVES = frozenset({"collective", "cuda"})
_NOUNS = {"queue_get": "queue", "queue_put": "queue", "queue_join": "queue", "collective": "collective"} | {
    each: each for each in ("lock", "event", "condition", "semaphore", "barrier", "future")
}
# Waits of ranks for each other.
_COMMON = frozenset({"collective", "cuda", "rendezvous"})
_AT_IT = ("runs ", "works for ", "should ")
# Nobody takes a sleep of this length for a hang.
_SHORT_SLEEP_S = 60.0
_WHOLE = frozenset({"is awaited", "is that process", "is that thread", "is at the other end", "should complete it"})


def explain(
    stacks: Sequence[Message], *, before: Sequence[Message] = (), ray: Mapping[str, Any] | None = None
) -> list[HangDiagnosis]:
    """The causes, most informative first; never empty. `before` is an earlier snapshot of the same processes."""
    for first, after in zip(before, stacks, strict=False):
        if first.get("pid") == after.get("pid") and all("native" in t for t in after.get("threads") or [{}]):
            mark_moved(first, after, LOOKS_APART_S)
    known = [_with_name(_with_crash(stack)) for stack in stacks]
    if ray:
        # Not loaded where there is no Ray.
        from rldbg.live.diagnosis.ray_queues import with_queue_ids

        known = with_queue_ids(known, ray)
    collectives = diagnose_stacks(before, known) if any(stack.get("groups") for stack in known) else None
    nodes = join_nccl(nodes_of(known), known)
    seen = any(node.kind == "collective" for node in nodes)
    if collectives is not None and (collectives.kind == "unknown" or (collectives.kind == "odd" and seen)):
        # Counters do not include operations that were started earlier and are waited for in C.
        collectives = None
    if ray:
        from rldbg.live.diagnosis.ray_nodes import join_ray

        nodes = join_ray(nodes, known, ray)
    graph = WaitGraph(join_ranks(nodes, known, judged=collectives.ranks if collectives is not None else None))
    ways = [way for way in graph.ways() if collectives is None or way[-1].kind not in _IN_COLLECTIVES]
    if collectives is not None:
        # Why these ranks are missing is explained together with the collective.
        ways = [way for way in ways if way[0].rank not in collectives.ranks]
    found = [HangDiagnosis(text, "nccl_error", ()) for text in nccl_errors(known)]
    found += [_diagnosis(each, graph) for each in _told_once(ways)]
    if collectives is not None:
        told = _with_reasons(collectives, graph)
        return [told, *(each for each in found if not set(each.ranks) & set(collectives.ranks))][:_SENTENCES]
    return found[:_SENTENCES] or [_nobody_waits(graph, known)]


def wait_of(stacks: Sequence[Message], pid: int, host: str) -> str:
    """What the main thread of one process waits for, and for whom; empty if it does not wait."""
    graph = WaitGraph(join_ranks(nodes_of(stacks), stacks))
    node = graph.nodes.get((host, pid, "main"))
    return sentence([node, *graph.onward(node)]) if node is not None and node.waits else ""


def _with_crash(stack: Message) -> Message:
    """Adds the line of the user's code that raised, from the crash file if it can be read here."""
    return stack | {"raised_at": users_frame(frames)} if (frames := raised_frames(stack)) else stack


def _with_name(stack: Message) -> Message:
    """Adds the name that the user gave a process to what the agent calls it."""
    name = str(stack.get("process_name") or "") if stack.get("rank") is None else ""
    return stack | {"who": f"{stack['who']} ({name})"} if name and name not in str(stack["who"]) else stack


def _told_once(ways: Sequence[Sequence[Node]]) -> list[list[Sequence[Node]]]:
    """Groups paths whose sentences differ only in who waits."""
    found: dict[str, list[Sequence[Node]]] = {}
    for way in ways:
        found.setdefault(sentence(way).removeprefix(way[0].label), []).append(way)
    return list(found.values())


def _diagnosis(ways: Sequence[Sequence[Node]], graph: WaitGraph) -> HangDiagnosis:
    way, nodes = ways[0], graph.nodes.values()
    told = {node.id for each in ways for node in each}
    alike = [node for node in nodes if node.id not in told and not node.background and _same_wait(node, way[0])]
    others = [other[0].label for other in ways[1:]] + [node.label for node in alike]
    told |= {node.id for node in alike}
    last = way[-1]
    ring = len(way) > 1 and last is way[0]
    blamed = (node for each in ways for node in (each if ring else each[-1:]))
    ranks = tuple(sorted({node.rank for node in blamed if node.rank is not None}))
    kind = "deadlock" if ring else "gone" if last.gone or last.wait.get("lost") else last.kind or "busy"
    if last.wait.get("polls"):
        # A polling loop may be normal, unless another process waits for it.
        kind = "polling" if len(way) > 1 else "unknown"
    if kind == "sleep" and len(way) > 1 and _sleeps_again(last) and _completes(way[-2], last):
        kind = "busy"
    uniform = len({node.kind for node in way}) == 1
    fix = (_RING_FIXES.get(last.kind, "") if uniform else "") if ring else _FIXES.get(kind, "")
    if ring and len(way) == 2 and last.kind == "lock":
        fix = "do not call what takes the lock while holding it, or make it a reentrant lock (RLock)"
    where = "" if ranks else ", ".join(dict.fromkeys([*(node.label for node in way), *others]))
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    verb = "waits" if len(others) == 1 else "wait"
    how = f"for the same {_NOUNS[way[0].kind]}" if len(ways) == 1 and way[0].kind in _NOUNS else "in the same way"
    same = f"; {', '.join(others[:3])}{more} {verb} {how}" if others else ""
    same += _elsewhere(last, [node for node in nodes if node.id not in told]) if len(way) > 1 else ""
    same += _held_up(way, [node for node in nodes if node.id not in told])
    return HangDiagnosis(sentence(way) + same, kind, ranks, (), (fix,) if fix else (), where)


def _same_wait(node: Node, other: Node) -> bool:
    """Whether two wait for the same object of a process, or in the same collective."""
    if node.kind != other.kind or not node.waits:
        return False
    if node.kind in _COMMON:
        return all(node.wait.get(each) == other.wait.get(each) for each in ("op", "group", "peer", "call"))
    return bool(node.wait.get("key")) and node.id[:2] == other.id[:2] and node.wait["key"] == other.wait.get("key")


def _held_up(way: Sequence[Node], others: Sequence[Node]) -> str:
    """Who waits for one of these nodes and is not in the sentence so far: the main thread, if it does."""
    ids = {node.id for node in way}
    waiting = [
        node for node in others if node.waits and not node.background and any(edge.target in ids for edge in node.edges)
    ]
    first = min(waiting, key=lambda node: node.id[2:] != ("main",), default=None)
    return f"; because of that {clause(first)}" if first is not None else ""


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


def _with_reasons(found: HangDiagnosis, graph: WaitGraph) -> HangDiagnosis:
    """Why the missing ranks do not arrive, if the wait graph knows it."""
    reasons, told = [], set()
    for node in graph.nodes.values():
        idle = node.kind == "idle"
        if node.rank not in found.ranks or (node.background and not idle) or node.id in told:
            continue
        if idle or node.kind in ("sleep", "computing") or node.wait.get("op") in UNNAMED:
            reasons.append(clause(node))
        elif node.waits and node.kind not in _IN_COLLECTIVES:
            path = [node, *graph.onward(node)]
            told |= {each.id for each in path}
            reasons.append(sentence(path))
    verdict, found_in, _ = found.verdict.partition("; it is in ")
    if found_in and len(found.ranks) == 1 and reasons:
        found = replace(found, verdict=f"{verdict}; {reasons.pop(0)}")
    if found.kind == "absent" and _all_compute(found.ranks, graph):
        found = replace(found, kind="computing", fix=(_SLOW,))
    return replace(found, evidence=(*reasons[:3], *found.evidence))


def _all_compute(ranks: Sequence[int], graph: WaitGraph) -> bool:
    mains = [node for node in graph.nodes.values() if node.id[2:] == ("main",) and node.kind == "computing"]
    return set(ranks) <= {node.rank for node in mains}


def _nothing_hangs(nodes: Sequence[Node]) -> str:
    passing = any(AT_THE_MOMENT in node.activity for node in nodes)
    return "no wait lasts" if passing else "no process waits for another"


def _nobody_waits(graph: WaitGraph, stacks: Sequence[Message]) -> HangDiagnosis:
    shown = [node for node in graph.nodes.values() if not node.background and (node.place or node.gone)]
    unanswered = [f"{stack['who']}: {stack['unanswered']}" for stack in stacks if stack.get("unanswered")]
    if not shown:
        seen = stacks and not unanswered
        words = "no thread runs code of the user: all are idle" if seen else "nothing can be said about the job"
        if not stacks:
            words += ": no process was found to look at"
        return HangDiagnosis(words, "unknown", (), tuple(unanswered))
    gone = [node for node in shown if node.gone]
    words = "; ".join(clause(node) for node in (gone or shown)[:3])
    return HangDiagnosis(
        words if gone else f"{_nothing_hangs(shown)}: {words}",
        "gone" if gone else "unknown",
        tuple(sorted({node.rank for node in gone if node.rank is not None})),
        tuple(unanswered),
        where=", ".join(node.label for node in gone[:3]),
    )
