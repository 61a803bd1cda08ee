"""Answers that a dispatcher drops: it looks up by a key who waits for one, finds nobody, and takes the next. Those who
wait are the root then, not the idle engine behind the dispatcher."""

from collections.abc import Iterator, Mapping, Sequence

from rldbg.live.diagnosis.entries import all_entries, entry_id
from rldbg.live.diagnosis.lost_waits import DUTIES, keys_text
from rldbg.live.diagnosis.wait_graph import JOINS, Id, Node, WaitFacts
from rldbg.live.diagnosis.wait_words import thing

# There is one of these for each request.
_ONE_EACH = frozenset({"future", "event"})
_INBOXES = frozenset({"queue_get", "pipe", "socket", "stream", "message", "stdin"})
_MOST_IDLE = 2

Entry = tuple[WaitFacts, Node]


def tell_dispatchers(stacks: Sequence[WaitFacts], known: Mapping[Id, Node]) -> None:
    """Where all that is behind a dispatcher waits for its next piece of work, it has dropped the answer that is waited
    for, or nobody has given one."""
    entries = {entry_id(entry, stack): entry for stack in stacks for entry in all_entries(stack) if "wait" in entry}
    waiting = [known[each] for each in entries if known[each].kind in _ONE_EACH and known[each].waits]
    resting: dict[Id, Node] = {}
    for node in waiting:
        found = next(_dispatchers(node, waiting, entries, known), None)
        if found is not None:
            dispatcher, step, idle = found
            node.wait = {**node.wait, "lost": _told(node, dispatcher, step, idle), "drops": True}
            node.edges = []
            resting |= {each.id: each for each in (dispatcher, *idle)}
    for each in resting.values():
        each.activity, each.wait, each.edges = f"waits for {thing(each.wait)}", {"kind": "serving"}, []


def _dispatchers(
    node: Node, waiting: Sequence[Node], entries: Mapping[Id, WaitFacts], known: Mapping[Id, Node]
) -> Iterator[tuple[Node, WaitFacts, list[Node]]]:
    """Who in the same process drops answers for the one that waits, by which step, and who is idle behind it."""
    for identity, entry in entries.items():
        step = _dropping(node, entry) if identity[:2] == node.id[:2] and identity != node.id else None
        idle = _idle_behind(known[identity], waiting, entries, known) if step is not None else None
        if step is not None and idle is not None:
            yield known[identity], step, idle


def _dropping(node: Node, entry: WaitFacts) -> WaitFacts | None:
    """What a thread would do to end the wait, and leaves out if it does not find a key in the table of those who
    wait."""
    tables = {str((node.wait.get("kept") or {}).get("table") or ""), str(node.wait.get("dropped") or "")}
    names = {_last(each) for each in tables} - {""}
    steps = [step for step in entry.get("answers") or () if step["method"] in (node.wait.get("ended_by") or ())]
    steps = [step for step in steps if step["lookup"] and _last(step["lookup"]["table"]) in names]
    return next(({**step, **told} for step in steps if (told := _guards(step))), None)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _guards(step: WaitFacts) -> WaitFacts:
    """Of what leads past a step, what depends on the key being found."""
    named = [each for each in (step["lookup"]["is"], _last(step["lookup"]["table"])) if each]
    ways = [way for way in step["left_by"] if not way.startswith("`if ") or any(each in way for each in named)]
    only = step["only_if"] if any(each in step["only_if"] for each in named) else ""
    return {"left_by": ways, "only_if": only} if ways or only else {}


def _idle_behind(
    dispatcher: Node, waiting: Sequence[Node], entries: Mapping[Id, WaitFacts], known: Mapping[Id, Node]
) -> list[Node] | None:
    """The workers that the next answer would come from, if all of them take the next piece of work. None where one of
    them does something else."""
    found: list[Node] = []
    asked = [dispatcher]
    while asked:
        one = asked.pop()
        if not _takes_next(one, entries):
            return None
        for each in (known[edge.target] for edge in one.edges if edge.target in known and edge.relation not in JOINS):
            # Those who wait for an answer, and the thread of their event loop, ask for nothing meanwhile.
            if each in waiting or each in (dispatcher, *found) or each.kind == "event_loop" or _joins(each, known):
                continue
            found.append(each)
            asked.append(each)
    return found


def _joins(node: Node, known: Mapping[Id, Node]) -> bool:
    """Whether it waits for the end of others as a whole."""
    targets = [edge for edge in node.edges if edge.target in known]
    return node.waits and bool(targets) and all(edge.relation in JOINS for edge in targets)


def _takes_next(node: Node, entries: Mapping[Id, WaitFacts]) -> bool:
    return node.waits and node.kind in _INBOXES and entries.get(node.id, {}).get("answers") is not None


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
