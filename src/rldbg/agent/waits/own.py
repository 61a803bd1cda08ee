"""The waits of this process, added to its stacks by its agent."""

from typing import Any

from .process_views import OwnProcess
from .snapshot import snapshot

_ADDED = ("native", "background", "pooled", "loops", "daemon", "kernel", "wait", "holds", "place")


def add_own_waits(stacks: dict[str, Any]) -> dict[str, Any]:
    """`stacks["threads"]` name the threads that are the user's; others are left out here too."""
    shown = {thread["ident"]: thread for thread in stacks["threads"]}
    found = snapshot(OwnProcess(frozenset(shown)))
    for thread in found.pop("threads"):
        shown[thread["ident"]].update({name: thread[name] for name in _ADDED})
    return stacks | found
