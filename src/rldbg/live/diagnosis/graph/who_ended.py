"""Threads, tasks and processes that have ended, and what was raised last: one of them may be who would have ended a
wait."""

import re
from collections.abc import Sequence

from rldbg.live.diagnosis.graph.entries import children_of
from rldbg.live.diagnosis.graph.failed_work import failed_text
from rldbg.live.diagnosis.graph.wait_graph import WaitFacts
from rldbg.live.diagnosis.graph.wait_words import exit_text, place_text

_ENDED_WELL = "exit code 0"
# Threads of the standard library's servers: one per request.
_ENDS_WITH_ITS_REQUEST = re.compile(r"\((handle_request|process_request_thread)\)$")


def ended_relatives(wait: WaitFacts, stack: WaitFacts, stacks: Sequence[WaitFacts]) -> str:
    """Processes that have ended and had the object: those that were started to act on it, else children of the process
    that failed."""
    ended = ended_processes(with_relatives(wait, stack, stacks))
    started = [each for each in ended if any(is_remembered(n, str(each.get("name"))) for n in known_starters(wait))]
    failed = [each for each in ended_processes(stack, failed=True) if not _is_unknown(each)]
    return ", ".join(ended_text(each) for each in (started or failed)[:4])


def _is_unknown(ended: WaitFacts) -> bool:
    """How it ended is not known to its relatives, only to who started it."""
    return str(ended.get("exit") or "").startswith("unknown")


def with_relatives(wait: WaitFacts, stack: WaitFacts, stacks: Sequence[WaitFacts]) -> WaitFacts:
    """The process, as if all that ended and had the object had been its own: any child of who has it may have had a
    part in it."""
    ended = [
        dict(each)
        for other in stacks
        if other.get("host") == stack.get("host")
        for each in other.get("ended") or []
        if may_have_had(other, wait, stack) or each.get("pid") in (stack.get("started_by") or ())
    ]
    return {**stack, "ended": _each_once(ended)}


def _each_once(ended: Sequence[WaitFacts]) -> list[WaitFacts]:
    """How a process ended is known to who started it, not to its other relatives."""
    told = sorted(ended, key=_is_unknown, reverse=True)
    return list({each.get("pid") or tuple(each.items()): each for each in told}.values())


def may_have_had(other: WaitFacts, wait: WaitFacts, stack: WaitFacts) -> bool:
    """Whether a process and those that it started may have had a shared object: who has a pipe open is known, and who
    started the one that waits may have given it to it."""
    openers = wait.get("openers")
    return openers is None or other.get("pid") in openers or stack.get("pid") in children_of(other)


def is_remembered(name: str, known: str) -> bool:
    """Whether one of this name is told already; what is in braces has other values there."""
    return bool(name) and re.search(re.sub(r"\\{.*?\\}", ".*", re.escape(name)), known) is not None


def what_ended(stack: WaitFacts, started: Sequence[str] = ()) -> str:
    """Threads, tasks and child processes of a process that are gone, and its last exception; of those that were started
    with one of these names, only they, and children that failed: they may have ended because of one."""
    ended = list(stack.get("ended") or [])
    threads = [each for each in ended if each["kind"] == "thread" and not _ENDS_WITH_ITS_REQUEST.search(each["name"])]
    raised, thread = last_raised(stack), str(stack.get("raised_in") or "")
    words = [f"thread {each['name']} has ended" for each in threads if each["name"] != thread]
    words += [f"task {each['name']} {each['exit']}" for each in ended if each["kind"] == "task"]
    words += [failed_text(each) for each in ended if each["kind"] == "future"]
    words += [f"thread {thread} has ended: {raised}"] if raised and thread else filter(None, [raised])
    words += ended_children(stack)
    own = [word for word in words if any(is_remembered(name, word) for name in started)]
    failed = [word for word in ended_children(stack, failed=True) if own and word not in own]
    return ", ".join([*(own or words), *failed][:4])


def known_starters(wait: WaitFacts) -> list[str]:
    return [str(each["name"]) for each in wait.get("starters") or [] if each["name"]]


def last_raised(stack: WaitFacts) -> str:
    """What was raised last in a process that continues: in a thread or a Ray task. Empty where nothing was."""
    if not stack.get("message"):
        return ""
    message, where = str(stack["message"]).partition("\n")[0], place_text(stack.get("raised_at"))
    return f"{message} was raised" + (f" at {where}" if where else "")


def ended_children(stack: WaitFacts, *, failed: bool = False) -> list[str]:
    """Child processes that have ended and were not waited for; or only those that did not end well."""
    return [ended_text(facts) for facts in ended_processes(stack, failed=failed)][:4]


def ended_processes(stack: WaitFacts, *, failed: bool = False) -> list[WaitFacts]:
    every = [each for each in stack.get("ended") or [] if each["kind"] == "process"]
    known = {each.get("pid") for each in every}
    unnamed = [each for each in stack.get("children") or [] if each["state"] == "zombie" and each["pid"] not in known]
    return [each for each in (*every, *unnamed) if not failed or each.get("exit") != _ENDED_WELL]


def ended_text(facts: WaitFacts) -> str:
    # That of a program is its command line.
    name = " ".join(str(facts.get("name", "")).split())
    who = f"process {name} (pid {facts['pid']})" if name else f"child process {facts['pid']}"
    return f"{who} has ended ({exit_text(str(facts.get('exit') or 'unknown'))})"
