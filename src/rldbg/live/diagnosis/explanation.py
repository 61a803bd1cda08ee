"""Why a job hangs: from its collectives if ranks wait in them, else from the wait graph; one sentence per cause."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rldbg.agent import Message
from rldbg.agent.waits import mark_moved
from rldbg.live.diagnosis.causes import SLOW, causes_of, consequences
from rldbg.live.diagnosis.graph.process_nodes import AT_THE_MOMENT
from rldbg.live.diagnosis.graph.wait_graph import Id, Node, WaitGraph, works_slowly
from rldbg.live.diagnosis.graph.wait_nodes import nodes_of, rest_where_meant, without_library_tasks
from rldbg.live.diagnosis.graph.wait_words import clause, place_text, sentence
from rldbg.live.diagnosis.hang import ENDED, HangDiagnosis
from rldbg.live.diagnosis.passed_by import other_branch_of, passed_by, where_apart
from rldbg.live.diagnosis.ranks.group_members import diagnose_groups
from rldbg.live.diagnosis.ranks.nccl_ranks import join_nccl, nccl_errors
from rldbg.live.diagnosis.ranks.rank_nodes import (
    NOT_BY_ALL,
    UNNAMED,
    answering_lines,
    join_ranks,
    uneven_rounds,
    unseen_ranks,
)
from rldbg.live.diagnosis.ranks.stack_groups import diagnose_stacks, raised_frames, raised_in_thread, users_frame
from rldbg.live.diagnosis.ray.deaths import deaths_once
from rldbg.live.diagnosis.said_errors import with_said_errors

_SENTENCES = 20
_OVER = "why it ended is in its logs: rldbg doctor RUN_FOLDER"
LOOKS_APART_S = 1.0
_NO_CAUSE = ("none", "possible", "unknown")
# Counters of collectives say more about these waits than stacks.
_IN_COLLECTIVES = frozenset({"collective", "cuda"})
# Where a rank may have come to a later line without what the others do.
_SKIPPED = frozenset({"absent", "disagreement", "cycle"})


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
        from rldbg.live.diagnosis.ray.queues import with_queue_ids

        known = with_queue_ids(known, ray)
    nodes = join_nccl(nodes_of(known), known)
    groups = diagnose_groups(nodes, known)
    counted = not groups and any(stack.get("groups") for stack in known)
    collectives = diagnose_stacks(before, known) if counted else None
    seen = any(node.kind == "collective" for node in nodes)
    if collectives is not None and (collectives.kind == "none" or (collectives.kind == "odd" and seen)):
        # Counters do not include operations that were started earlier and are waited for in C.
        collectives = None
    if ray:
        from rldbg.live.diagnosis.ray.nodes import join_ray

        nodes = join_ray(nodes, known, ray)
    joined = join_ranks(
        without_library_tasks(nodes), known, judged=collectives.ranks if collectives is not None else None
    )
    graph = WaitGraph(rest_where_meant(joined, known))
    ways = [way for way in graph.ways() if collectives is None or way[-1].kind not in _IN_COLLECTIVES]
    if collectives is not None:
        # Why these ranks are missing is explained together with the collective.
        ways = [way for way in ways if way[0].rank not in collectives.ranks]
    # What these ranks wait for is told with their groups.
    apart = {process for _, told in groups for process in told}
    ways = [way for way in ways if not any(node.id[:2] in apart for node in way)]
    found = [HangDiagnosis(text, "nccl_error", ()) for text in nccl_errors(known)]
    found += deaths_once([_with_unseen(each, known) for each in causes_of(ways, graph)])
    if groups:
        found = [*(_with_consequences(told, apart, graph) for told, _ in groups), *found]
    elif collectives is not None:
        others = [each for each in found if not set(each.ranks) & set(collectives.ranks)]
        found = [_with_reasons(collectives, graph), *others]
    found = found or [_with_deaths(_nobody_waits(graph, known), graph, ray or {})]
    if found[0].is_harmless and _is_unsettled(graph):
        found[0] = replace(found[0], unsettled=True)
    return with_said_errors(found[:_SENTENCES], graph, known)


def wait_of(stacks: Sequence[Message], pid: int, host: str) -> str:
    """What the main thread of one process waits for, and for whom; empty if it does not wait."""
    graph = WaitGraph(join_ranks(nodes_of(stacks), stacks))
    node = graph.nodes.get((host, pid, "main"))
    return sentence([node, *graph.onward(node)]) if node is not None and node.waits else ""


def _with_crash(stack: Message) -> Message:
    """Adds the line of the user's code that raised, and the thread, from the crash file if it can be read here."""
    frames = raised_frames(stack)
    return stack | {"raised_at": users_frame(frames), "raised_in": raised_in_thread(stack)} if frames else stack


def _with_name(stack: Message) -> Message:
    """Adds the name that the user gave a process to what the agent calls it."""
    name = str(stack.get("process_name") or "") if stack.get("rank") is None else ""
    return stack | {"who": f"{stack['who']} ({name})"} if name and name not in str(stack["who"]) else stack


def _with_unseen(found: HangDiagnosis, stacks: Sequence[Message]) -> HangDiagnosis:
    """Adds the ranks that were not found to a wait for the GPU: they may be those it waits for."""
    jobs = {stack.get("job") for stack in stacks if stack.get("rank") is not None}
    unseen = unseen_ranks(stacks) if found.kind == "cuda" and len(jobs) == 1 else ""
    return replace(found, evidence=(*found.evidence, unseen)) if unseen else found


def _with_consequences(found: HangDiagnosis, told: set[Id], graph: WaitGraph) -> HangDiagnosis:
    """Adds who waits for processes that are told, without being one of them."""
    ids = {identity for identity in graph.nodes if identity[:2] in told}
    others = [node for identity, node in graph.nodes.items() if identity not in ids]
    return replace(found, evidence=(*found.evidence, *consequences(ids, others, graph)))


def _with_reasons(found: HangDiagnosis, graph: WaitGraph) -> HangDiagnosis:
    """Why the missing ranks do not arrive, if the wait graph knows it."""
    reasons, told = [], set()
    for node in graph.nodes.values():
        idle = node.kind == "idle"
        if node.rank not in found.ranks or (node.background and not idle) or node.id in told:
            continue
        if idle or node.kind in ("sleep", "computing") or node.wait.get("op") in UNNAMED:
            reasons.append(clause(node))
        elif node.waits and (node.kind not in _IN_COLLECTIVES or node.wait.get("named")):
            path = [node, *graph.onward(node)]
            told |= {each.id for each in path}
            reasons.append(sentence(path))
    verdict, found_in, _ = found.verdict.partition("; it is in ")
    if found_in and len(found.ranks) == 1 and reasons:
        found = replace(found, verdict=f"{verdict}; {reasons.pop(0)}")
    if found.kind == "absent" and _all_compute(found.ranks, graph):
        verdict = found.verdict.replace(" never entered ", " has not yet entered ", 1)
        found = replace(found, verdict=verdict, kind="computing", fix=(SLOW,))
    ring = [node for node in graph.nodes.values() if node.rank in found.ranks and node.kind == "collective"]
    uneven, count = uneven_rounds(ring) if found.kind == "cycle" else ("", "")
    found = replace(found, fix=(count,)) if count else found
    more = f"; {uneven}" if uneven else _passed(found, graph) or _answered_elsewhere(found, graph)
    evidence = (*reasons[:3], *found.evidence, *_callers(found, graph))
    actors = frozenset(node.id for node in graph.nodes.values() if node.rank in found.ranks)
    return replace(found, verdict=found.verdict + more, evidence=evidence, actors=actors, told=actors | told)


def _passed(found: HangDiagnosis, graph: WaitGraph) -> str:
    """How a rank has passed by the collective that another one waits in."""
    ranked = [node for node in graph.nodes.values() if node.rank is not None and node.route]
    waiting = [node for node in ranked if node.kind == "collective" and node.wait.get("op") not in NOT_BY_ALL]
    # Where it was begun is another line.
    waiting = [node for node in waiting if not node.wait.get("begun")]
    for node in waiting if found.kind in _SKIPPED else ():
        members = node.wait.get("members") or [each.rank for each in ranked]
        others = [each for each in ranked if each.rank not in (node.rank, *found.left) and each.rank in members]
        # An exception that a rank handles took it past everything.
        others = [each for each in others if not each.wait.get("handles")]
        for other in (each for each in others if {each.rank, node.rank} & {*found.ranks}):
            if branch := other_branch_of(node.route, other.route):
                return f"; rank {other.rank} is in the other branch of {branch}"
            if how := passed_by(node.route, other.route, waits=other.kind == "collective"):
                said = f"; rank {other.rank} skipped the {node.wait.get('op')} of rank {node.rank}: {how}"
                return "" if how in found.verdict else said
    return ""


def _callers(found: HangDiagnosis, graph: WaitGraph) -> list[str]:
    """Where ranks that are at the same line come from, if from different ones."""
    there = [node for node in graph.nodes.values() if node.kind == "collective" and node.rank in found.ranks]
    alike = [node for node in there if node.route and node.place == there[0].place]
    parts = {rank: at for node in alike[1:] if (at := where_apart(alike[0].route, node.route)) for rank in [node.rank]}
    if not parts:
        return []
    first = f"rank {alike[0].rank} came there from {place_text(next(iter(parts.values()))[0])}"
    return [", ".join([first, *(f"rank {rank} from {place_text(at[1])}" for rank, at in parts.items())])]


def _answered_elsewhere(found: HangDiagnosis, graph: WaitGraph) -> str:
    """Where the other side of a send or receive would answer, if it does something else."""
    blamed = [node for node in graph.nodes.values() if node.rank in found.ranks and node.enters]
    for node in graph.nodes.values() if found.kind in _SKIPPED else ():
        others = [each for each in blamed if each.rank == node.wait.get("peer") and each.wait.get("peer") != node.rank]
        if node.rank is not None and others and (lines := answering_lines(node, others[0])):
            return f"; rank {others[0].rank} does not answer rank {node.rank}{lines}"
    return ""


def _all_compute(ranks: Sequence[int], graph: WaitGraph) -> bool:
    mains = [node for node in graph.nodes.values() if node.id[2:] == ("main",)]
    return set(ranks) <= {node.rank for node in mains if node.kind == "computing" or works_slowly(node.wait)}


def _is_unsettled(graph: WaitGraph) -> bool:
    """Whether some went on between two looks, and all of them wait now: a ring may have closed meanwhile."""
    shown = [node for node in graph.nodes.values() if not node.background]
    passing = [node for node in shown if AT_THE_MOMENT in node.activity]
    others = [node for node in shown if node not in passing]
    return bool(passing) and not any(node.kind in ("", "computing", "sleep") and not node.gone for node in others)


def _nothing_hangs(nodes: Sequence[Node]) -> str:
    if len(nodes) > 1 and all(node.wait.get("polls") for node in nodes):
        return "all poll, and none is seen changing what the others look at"
    passing = any(AT_THE_MOMENT in node.activity for node in nodes)
    return "no wait lasts" if passing else "no process waits for another"


def _with_deaths(found: HangDiagnosis, graph: WaitGraph, ray: Mapping[str, Any]) -> HangDiagnosis:
    """Adds who died or failed in a Ray cluster. A loop that asks Ray for progress while all workers are idle has no
    other reason to last."""
    if not ray or found.kind not in (*_NO_CAUSE, "ended"):
        return found
    from rldbg.live.diagnosis.ray.queues import killed_at_work, lost_users

    lost = lost_users(ray) + killed_at_work(ray)
    polling = [node for node in graph.nodes.values() if node.wait.get("polls")]
    asking = [node for node in polling if node.calls or ".remote(" in str(node.wait["polls"])]
    others = [node for node in graph.nodes.values() if node not in asking and not node.background and not node.gone]
    if lost and asking and all(node.kind == "idle" for node in others):
        words = f"{clause(asking[0])}; all workers are idle; {'; '.join(lost)}"
        return replace(found, verdict=words, kind="ended", where=asking[0].label)
    return replace(found, evidence=(*found.evidence, *lost))


def _unfounded(nodes: Sequence[Node], unanswered: Sequence[str]) -> str:
    """What it is called that no cause of a hang was found: whether there is none, or it cannot be told."""
    if unanswered or any(node.kind == "unknown" for node in nodes):
        return "unknown"
    return "possible" if any(node.wait.get("polls") for node in nodes) else "none"


def _nobody_waits(graph: WaitGraph, stacks: Sequence[Message]) -> HangDiagnosis:
    shown = [node for node in graph.nodes.values() if not node.background and (node.place or node.gone)]
    unanswered = [f"{stack['who']}: {stack['unanswered']}" for stack in stacks if stack.get("unanswered")]
    if not shown:
        seen = stacks and not unanswered
        words = "no thread runs code of the user: all are idle" if seen else "nothing can be said about the job"
        if not stacks:
            words += ": no process was found to look at"
        return HangDiagnosis(words, "unknown", (), tuple(unanswered))
    gone = sorted((node for node in shown if node.gone), key=lambda node: node.gone != "raised")
    # A loop that looks for something may look for what they would have done.
    polling = [node for node in shown if node.wait.get("polls") and not node.gone] if gone else []
    words = "; ".join(clause(node) for node in [*polling[:1], *(gone or shown)][:3])
    if all(stack.get("lost") or stack.get("state") in ENDED for stack in stacks):
        return HangDiagnosis(f"the job has ended, no process is left to wait: {words}", "ended", (), fix=(_OVER,))
    return HangDiagnosis(
        words if gone else f"{_nothing_hangs(shown)}: {words}",
        gone[0].gone if gone else _unfounded(shown, unanswered),
        tuple(sorted({node.rank for node in gone if node.rank is not None})),
        tuple(each for each in unanswered if not any(each.startswith(f"{node.label}: ") for node in gone)),
        where=", ".join(node.label for node in (gone or shown)[:3]),
    )
