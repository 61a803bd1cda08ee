"""Loops that ask a server again and again: who listens there, and what has ended in it."""

from collections.abc import Mapping, Sequence

from rldbg.live.diagnosis.graph.entries import all_entries, entry_id, process_name
from rldbg.live.diagnosis.graph.wait_graph import Id, Node, WaitFacts
from rldbg.live.diagnosis.graph.who_ended import last_raised, what_ended


def tell_asked_servers(stacks: Sequence[WaitFacts], known: Mapping[Id, Node]) -> None:
    """A server in which an exception has ended a thread goes on to answer, but perhaps never as the loop expects."""
    for stack in stacks:
        for entry in (each for each in all_entries(stack) if (each.get("wait") or {}).get("asks_at")):
            node = known[entry_id(entry, stack)]
            told, raised = _told(entry["wait"], stack, stacks)
            if told and node.activity.startswith("polls"):
                node.activity = f"{node.activity.removesuffix(')')}; {told})"
                node.gone = node.gone or ("raised" if raised else "")


def _told(wait: WaitFacts, stack: WaitFacts, stacks: Sequence[WaitFacts]) -> tuple[str, bool]:
    served_by, address = wait.get("served_by"), wait["asks_at"]
    if served_by is None:
        return "", False
    if not served_by:
        return f"no process of this host listens at {address}", False
    others = [each for each in stacks if each is not stack and each.get("host") == stack.get("host")]
    for server in (each for each in others if each.get("pid") in served_by):
        listens = f"{process_name(server, stacks)} listens at {address}"
        raised = what_ended(server) if last_raised(server) else _printed(server)
        return f"{listens}, and {raised}" if raised else listens, bool(raised)
    return "", False


def _printed(server: WaitFacts) -> str:
    """The thread or task that an exception has ended, by what the process has printed."""
    for each in server.get("said") or []:
        if each.get("gone"):
            return f"{each['gone']} has ended: {each['message']}"
        if each.get("thread_ended"):
            whose = f"thread {each['thread_ended']} of it, or of another process that prints into the same file,"
            return f"{whose} has ended: {each['message']}"
    return ""
