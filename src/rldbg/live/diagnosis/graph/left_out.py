"""What keeps the target of an edge from doing its part: a step that it leaves out for an item, or a buffer that was not
flushed."""

from dataclasses import replace

from rldbg.live.diagnosis.graph.asked import Asked
from rldbg.live.diagnosis.graph.entries import process_id
from rldbg.live.diagnosis.graph.skipped_steps import keys_text, ways_text
from rldbg.live.diagnosis.graph.wait_graph import Edge, WaitFacts

# What is answered by writing into a connection, and by which methods.
READ = frozenset({"pipe", "socket", "stream", "stdin"})
_SENDING = frozenset({"send", "send_bytes", "sendall", "sendto", "sendmsg", "write", "writelines"})
# There is one of these for each request.
_ONE_EACH = frozenset({"future", "event"})


def with_left_out(edge: Edge, asked: Asked) -> Edge:
    """An edge with what makes its target leave out its part for an item."""
    target = asked.known.get(edge.target)
    for step in (target.answers or ()) if target is not None else ():
        if (step["left_by"] or step["only_if"]) and _answers(step, edge, asked):
            does = "it answers" if asked.kind in READ else "it does so"
            elsewhere = target is not None and not target.place.endswith(f"({step['function']})")
            where = f"in line {step['line']}" + f" of {step['function']}" * elsewhere
            why = f"which {ways_text(step)}" if step["left_by"] else f"only if {step['only_if']}"
            # Of what is taken out of a table, the keys say more.
            last = keys_text(step["lookup"]) or _last_item(step)
            return replace(edge, skipped=f"{does} {where}, {why}{last}")
    return edge


def _last_item(step: WaitFacts) -> str:
    """What the conditions that lead past a step look at, as it was for the item that was taken last."""
    return f"; of its last item{str(step['values']).replace(' (', ' ', 1).removesuffix(')')}" if step["values"] else ""


def with_unflushed(edge: Edge, asked: Asked) -> Edge:
    """An edge with what its target has written for who waits, and which is still in the buffer of its file."""
    own = [each for each in asked.stacks if process_id(each) == edge.target[:2]]
    ends = {number for owner, number in asked.wait.get("sockets") or () if owner == edge.target[1]}
    files = [file for each in own for file in each.get("unflushed") or () if file["descriptor"] in ends]
    if not files or asked.wait.get("call") == "write" or asked.wait.get("sends"):
        return edge
    asked.node.wait = {**asked.node.wait, "unflushed": True}
    kept = f"what it wrote last ({files[0]['size']} bytes) is still in the buffer of {files[0]['name']}, not flushed"
    return replace(edge, skipped=kept)


def _answers(step: WaitFacts, edge: Edge, asked: Asked) -> bool:
    """Whether a step of another thread would end a wait; where it is not certain on which object it is done, whether it
    may."""
    if asked.kind in READ:
        ends = {number for owner, number in asked.wait.get("sockets") or () if owner == edge.target[1]}
        return step["method"] in _SENDING and bool(ends & {*step["writes"]})
    own = {asked.wait.get("key"), asked.wait.get("shared")} - {None, ""}
    ends_it = step["method"] in (asked.wait.get("ended_by") or ())
    there = {*step["keys"], *(step["lookup"].get("objects") or ())}
    return ends_it and (bool(own & there) or (asked.kind in _ONE_EACH and bool(step["may"])))
