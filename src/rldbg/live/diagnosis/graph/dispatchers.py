"""Answers that a dispatcher drops: it looks up by a key who waits for one, finds nobody, and takes the next. Those who
wait are the root then, not the idle engine behind the dispatcher."""

from collections.abc import Iterator, Mapping, Sequence

from rldbg.live.diagnosis.graph.lost_waits import DUTIES
from rldbg.live.diagnosis.graph.skipped_steps import keys_text
from rldbg.live.diagnosis.graph.wait_graph import JOINS, Id, Node, WaitFacts
from rldbg.live.diagnosis.graph.wait_words import thing

# There is one of these for each request.
_ONE_EACH = frozenset({"future", "event"})
_INBOXES = frozenset({"queue_get", "pipe", "socket", "stream", "message", "stdin"})
_MOST_IDLE = 2


def tell_dispatchers(known: Mapping[Id, Node]) -> None:
    """Where all that is behind a dispatcher waits for its next piece of work, it has dropped the answer that is waited
    for, or nobody has given one."""
    waiting = {identity: node for identity, node in known.items() if node.kind in _ONE_EACH and node.waits}
    steps = list(_dropping(known)) if waiting else []
    idle = {each.id: _idle_behind(each, waiting, known) for each in {each.id: each for each, _ in steps}.values()}
    resting: dict[Id, Node] = {}
    for node in waiting.values():
        # Of several with tables of one name, the one whose table has who waits.
        for dispatcher, step in sorted(steps, key=lambda each: not _has(each[1], node)):
            behind = idle[dispatcher.id]
            if behind is not None and _would_end(step, node) and _is_beside(dispatcher, node):
                node.wait = {**node.wait, "lost": _told(node, dispatcher, step, behind), "drops": True}
                node.edges = []
                resting |= {each.id: each for each in (dispatcher, *behind)}
                break
    for each in resting.values():
        each.activity, each.wait, each.edges = f"waits for {thing(each.wait)}", {"kind": "serving"}, []


def _dropping(known: Mapping[Id, Node]) -> Iterator[tuple[Node, WaitFacts]]:
    """What threads and tasks do for who is found under a key of a table, and leave out if nobody is."""
    for node in known.values():
        for step in node.answers or ():
            if step["lookup"] and (told := _guards(step)):
                yield node, {**step, **told}


def _has(step: WaitFacts, node: Node) -> bool:
    return node.wait.get("key") in (step["lookup"].get("objects") or ())


def _would_end(step: WaitFacts, node: Node) -> bool:
    tables = {str((node.wait.get("kept") or {}).get("table") or ""), str(node.wait.get("dropped") or "")}
    names = {_last(each) for each in tables} - {""}
    return step["method"] in (node.wait.get("ended_by") or ()) and _last(step["lookup"]["table"]) in names


def _is_beside(node: Node, other: Node) -> bool:
    """In the same process."""
    return node.id[:2] == other.id[:2] and node is not other


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _guards(step: WaitFacts) -> WaitFacts:
    """Of what leads past a step, what depends on the key being found."""
    named = [each for each in (step["lookup"]["is"], _last(step["lookup"]["table"])) if each]
    ways = [way for way in step["left_by"] if not way.startswith("`if ") or any(each in way for each in named)]
    only = step["only_if"] if any(each in step["only_if"] for each in named) else ""
    return {"left_by": ways, "only_if": only} if ways or only else {}


def _idle_behind(dispatcher: Node, waiting: Mapping[Id, Node], known: Mapping[Id, Node]) -> list[Node] | None:
    """The workers that the next answer would come from, if all of them take the next piece of work. None where one of
    them does something else."""
    found: list[Node] = []
    asked = [dispatcher]
    while asked:
        one = asked.pop()
        if not _takes_next(one):
            return None
        for each in (known[edge.target] for edge in one.edges if edge.target in known and edge.relation not in JOINS):
            # Those who wait for an answer, and the thread of their event loop, ask for nothing meanwhile.
            if each.id in waiting or each in (dispatcher, *found) or each.kind == "event_loop" or _joins(each, known):
                continue
            found.append(each)
            asked.append(each)
    return found


def _joins(node: Node, known: Mapping[Id, Node]) -> bool:
    """Whether it waits for the end of others as a whole."""
    targets = [edge for edge in node.edges if edge.target in known]
    return node.waits and bool(targets) and all(edge.relation in JOINS for edge in targets)


def _takes_next(node: Node) -> bool:
    return node.waits and node.kind in _INBOXES and node.answers is not None


def _told(node: Node, dispatcher: Node, step: WaitFacts, idle: Sequence[Node]) -> str:
    found, duty = step["lookup"], DUTIES[node.kind][1]
    guard = " or ".join(step["left_by"]) or f"it does so only if {step['only_if']}"
    words = (
        f"{dispatcher.label} would {duty} in line {step['line']} ({step['function']}), but drops an answer whose key "
    )
    words += f"`{found['key']}` is not in `{found['table']}` ({guard}){keys_text(found)}"
    if node.wait.get("dropped"):
        words += f"; it is not in `{node.wait['dropped']}` any more, where this function has put it"
    left = next((edge.skipped for edge in dispatcher.edges if edge.skipped), "")
    words += f"; it waits for the next one, {thing(dispatcher.wait)}"
    words += "".join(f"; {each.label} waits for {thing(each.wait)}" for each in idle[:_MOST_IDLE])
    return words + (f" (or it has left the answer out: {left})" if left else "")
