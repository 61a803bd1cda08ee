"""Steps of functions that nobody comes to, in words: who would do them, and what leads past them."""

from collections.abc import Sequence

from rldbg.agent.waits import is_users
from rldbg.live.diagnosis.graph.entries import all_entries
from rldbg.live.diagnosis.graph.wait_graph import WaitFacts
from rldbg.live.diagnosis.graph.wait_words import place_text

# How ways past a step begin that are written out.
_TOLD_AS_IT_IS = ("`", "an ")


def skipped_text(wait: WaitFacts) -> str:
    """A release, or an item that is put back, which an exception or an exit has skipped, or may have."""
    skipped, failed = wait["skipped"], wait.get("failed") or {}
    take, give = ("takes one", "puts it back") if wait["kind"] == "queue_get" else ("acquires it", "releases it")
    text = f"{skipped['function']} {take} in line {skipped['acquired']} and {give} in line"
    text += f" {skipped['released']}, which {ways_text(skipped)}"
    if not failed:
        return text
    futures = f"{failed['count']} futures have" if failed["count"] > 1 else "1 future has"
    return f"{text}: {futures} failed there with {failed['raised']} at {place_text(failed)}"


def unchanged_text(wait: WaitFacts, stack: WaitFacts) -> str:
    """Of what a loop looks at: who would change it, if nobody comes to that from where it is."""
    seen = wait.get("unchanged") or {}
    if not seen:
        return ""
    text = f"in its file only {functions_text(seen['functions'])} would change `{seen['name']}`, "
    text += nobody_in(seen["functions"], stack)
    if skipped := seen.get("skipped"):
        text += f"; {skipped['function']} sets it to {skipped['to']} in line {skipped['from']} and to"
        text += f" {skipped['back_to']} in line {skipped['line']}, which {ways_text(skipped)}"
    return text


def nobody_in(functions: Sequence[str], stack: WaitFacts) -> str:
    """That none of these functions (as `name:line`) is run, or who is in one of them, elsewhere."""
    names, them = {each.partition(":")[0] for each in functions}, "it" if len(functions) == 1 else "them"
    for entry in all_entries(stack):
        for frame in entry.get("frames") or []:
            if (name := str(frame["function"]).rpartition(".")[2]) in names and is_users(str(frame["file"])):
                what = "it" if len(functions) == 1 else name
                return f"and {entry_text(entry)}, which runs {what}, is at line {frame['line']}"
    return f"and no thread or task is seen running {them}"


def entry_text(entry: WaitFacts) -> str:
    if "task" in entry:
        return f"task {entry['task']}"
    return "the main thread" if entry.get("main") else f"thread {entry.get('thread')}"


def ways_text(skipped: WaitFacts) -> str:
    """What leads past a step of a function: "`if failed: return` in line 8, or an exception in between, skips"."""
    exits = [
        way if way.startswith(_TOLD_AS_IT_IS) else f"the {way}" for way in skipped["left_by"] if way != "exception"
    ]
    if len(exits) < len(skipped["left_by"]):
        return f"{', '.join(exits)}, or an exception in between, skips" if exits else "an exception in between skips"
    return f"{' or '.join(exits)} {'skips' if len(exits) == 1 else 'skip'}"


def keys_text(found: WaitFacts) -> str:
    """The key of the last answer, and those of who waits, where a step is for who is found in a table."""
    if not found:
        return ""
    more = f" and {found['size'] - len(found['there'])} more" if (found["size"] or 0) > len(found["there"]) else ""
    keys = "key" if found["size"] == 1 else "keys"
    there = f"`{found['table']}` has {keys} {', '.join(found['there'])}{more}" if found["there"] else ""
    last = f"the last answer had key {found['last']}" if found["last"] else ""
    told = ", ".join(filter(None, [last, there]))
    return f": {told}" if told else ""


def functions_text(functions: Sequence[str]) -> str:
    return " and ".join(name.replace(":", " (line ", 1) + ")" for name in functions[:3])
