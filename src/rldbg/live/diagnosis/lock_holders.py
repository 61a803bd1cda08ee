"""Who holds a lock that somebody waits for."""

from collections.abc import Sequence

from rldbg.live.diagnosis.entries import all_entries, children_of, entry_id, thread_id
from rldbg.live.diagnosis.wait_graph import Edge, Node, WaitFacts
from rldbg.live.diagnosis.wait_words import place_text


def lock_edges(wait: WaitFacts, stack: WaitFacts, node: Node, stacks: Sequence[WaitFacts]) -> list[Edge]:
    for choice in wait.get("choices") or []:
        everywhere = stacks if choice["key"].startswith("shared:") else [stack]
        found = [Edge(thread_id(stack, choice["owner"]), "holds it")] if choice.get("owner") else []
        for holder, entry in ((each, entry) for each in everywhere for entry in all_entries(each)):
            for held in entry.get("holds") or []:
                if choice["key"] and held["key"] == choice["key"]:
                    identity = entry_id(entry, holder)
                    where = place_text(held)
                    taken = f"holds it (as `{held['name']}`, in {where})"
                    found = [Edge(identity, taken)] if choice.get("owner") else [*found, Edge(identity, taken)]
        if found:
            node.wait = {**node.wait, "name": choice["name"], "key": choice["key"]}
            return found
        if lost := _holder_at_fork(choice, stack, stacks):
            node.wait = {**node.wait, "name": choice["name"], "lost": lost}
    return []


def _holder_at_fork(choice: WaitFacts, stack: WaitFacts, stacks: Sequence[WaitFacts]) -> str:
    """A lock that a thread of the parent held while this process was forked: it has the same address there."""
    for parent in stacks:
        if stack.get("pid") not in children_of(parent):
            continue
        for entry in all_entries(parent):
            if any(choice["key"] and held["key"] == choice["key"] for held in entry.get("holds") or []):
                who = "the main thread" if entry.get("main") else f"thread {entry.get('thread') or entry.get('task')}"
                return f"{who} of {parent['who']} held it when this process was forked: its copy is never released here"
    return ""
