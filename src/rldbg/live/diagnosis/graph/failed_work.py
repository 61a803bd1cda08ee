"""Work whose exception only its future has, and that would have ended a wait after it."""

import re
from collections.abc import Iterator, Sequence

from rldbg.live.diagnosis.graph.wait_graph import WaitFacts
from rldbg.live.diagnosis.graph.wait_words import place_text

_UNKNOWN_PART = re.compile(r"\{[^{}]*\}")


def failed_duty(wait: WaitFacts, stacks: Sequence[WaitFacts], duty: str) -> str:
    """What it raised, and where it would have ended the wait; empty where there is none."""
    for stack in stacks:
        for each in (each for each in stack.get("ended") or () if each["kind"] == "future"):
            if place := next(_left_out(each, wait), None):
                of = f" of {stack['who']}" if len(stacks) > 1 else ""
                return f"{failed_text(each, of)}; it would {duty} only in line {place['line']}"
    return ""


def _left_out(failed: WaitFacts, wait: WaitFacts) -> Iterator[WaitFacts]:
    """The lines behind an exception that would have ended a wait."""
    own = {wait.get("key"), wait.get("shared")} - {None, ""}
    for step in failed["skips"]:
        if own & {*step["keys"]} and step["method"] in wait.get("ended_by", ()):
            yield step["place"]
    for key, place in failed["sets"].items() if wait["kind"] == "store" else ():
        if any(is_key(each, key) for each in wait.get("keys") or ()):
            yield place


def failed_text(failed: WaitFacts, of: str = "") -> str:
    where = f" at {place_text(failed['place'])}" if failed.get("place") else ""
    more = f" and {failed['count'] - 1} more" if failed["count"] > 1 else ""
    who = f"the work of {failed['name']}{of}{more} {'have' if more else 'has'} failed"
    return f"{who}, and nobody was told: {failed['raised']} was raised{where}"


def is_key(wanted: str, written: str) -> bool:
    """Whether a key is the one that is written there, maybe with parts that are not known yet."""
    if not written.startswith(("f'", 'f"')):
        return wanted == written
    parts = [re.escape(part) for part in _UNKNOWN_PART.split(written[2:-1])]
    return any(parts) and re.fullmatch(".+".join(parts), wanted) is not None
