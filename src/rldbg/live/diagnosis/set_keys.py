"""Who will set the key of a torch.distributed store that another rank waits for."""

import re
from collections.abc import Sequence, Set

from rldbg.live.diagnosis.entries import all_entries, entry_id
from rldbg.live.diagnosis.wait_graph import Edge, WaitFacts
from rldbg.live.diagnosis.wait_words import place_text

_UNKNOWN_PART = re.compile(r"\{[^{}]*\}")


def later_setters(wanted: Set[str], stacks: Sequence[WaitFacts]) -> list[Edge]:
    """Threads and tasks that come to a line which sets one of the keys, with that line."""
    found = {
        entry_id(entry, stack): f"sets it only later ({place_text(place)})"
        for stack in stacks
        for entry in all_entries(stack)
        for key, place in (entry.get("sets_later") or {}).items()
        if any(_is_key(own, key) for own in wanted)
    }
    return [Edge(identity, part) for identity, part in found.items()]


def _is_key(wanted: str, written: str) -> bool:
    """Whether a key is the one that is written there, maybe with parts that are not known yet."""
    if not written.startswith(("f'", 'f"')):
        return wanted == written
    parts = [re.escape(part) for part in _UNKNOWN_PART.split(written[2:-1])]
    return any(parts) and re.fullmatch(".+".join(parts), wanted) is not None
