"""Threads, tasks and processes of a snapshot as nodes: what each is called, where it is, and what it does."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from rldbg.agent.waits import is_standard, is_users
from rldbg.live.diagnosis.graph.entries import all_entries, blocked_loops, process_id
from rldbg.live.diagnosis.graph.skipped_steps import unchanged_text
from rldbg.live.diagnosis.graph.wait_graph import RESTING, Id, Node, WaitFacts
from rldbg.live.diagnosis.graph.wait_words import exit_text, handled_text, listed, lock_file_text, place_text, thing
from rldbg.live.diagnosis.graph.who_ended import ended_children, last_raised

AT_THE_MOMENT = "at the moment it waits for"
_QUOTED = re.compile(r"'([^']+)'")
_SENDING = frozenset({"send", "send_bytes", "sendall"})
# The main program has ended, its process has not.
_OVER = frozenset({"exit", "undrained"})
_RANKS_MEET = frozenset({"collective", "rendezvous", "store"})
# Programs wait while they handle these, and nothing has failed.
_EVERYDAY = frozenset(
    {"Empty", "Full", "QueueEmpty", "QueueFull", "StopIteration", "StopAsyncIteration", "CancelledError"}
    | {"TimeoutError", "Timeout", "BlockingIOError", "GeneratorExit"}
)
_ACTIVITIES = {
    "sleep": "sleeps (time.sleep)",
    "computing": "is computing",
    "event_loop": "runs an event loop whose tasks all wait",
    "signal": "waits for a signal",
    "holds_gil": "is in C code that does not release the interpreter lock (GIL)",
    "unknown": "is",
    "serving": "is a server that waits for requests",
    "idle": "is idle (Ray runs no task in it)",
    "debugger": "is paused by a debugger (at a breakpoint or an exception)",
}


def process_nodes(stack: WaitFacts, who: str, alone: bool) -> Iterator[Node]:
    base = process_id(stack)
    threads = [thread for thread in stack.get("threads") or [] if "wait" in thread]
    shown = [thread for thread in threads if not thread["background"]]
    if not threads:
        yield Node((*base, "process"), who, rank=stack.get("rank"), **_fate(stack))
    for thread in threads:
        label = _label(thread, who, alone=alone, single=len(shown) <= 1)
        key = "main" if thread["main"] else thread["ident"]
        yield _node((*base, key), label, thread, stack)
    for task in stack.get("tasks") or []:
        label = _task_name(task) if alone else f"{_task_name(task)} of {who}"
        yield _node((*base, "task", task["key"]), label, task, stack)


def _task_name(task: WaitFacts) -> str:
    """Where asyncio has only numbered a task, what it runs."""
    name, place = str(task["task"]), task.get("place") or {}
    numbered = name.removeprefix("Task-").isdigit()
    runs = str(place.get("function") or "").rpartition(".")[2]
    frames = [str(f["function"]).rpartition(".")[2] for f in task.get("frames") or [] if is_users(str(f["file"]))]
    runs = frames[-1] if frames else runs
    return f"task {runs} ({name})" if numbered and runs else f"task {name}"


def strangers_of(stacks: Sequence[WaitFacts], seen: set[Id]) -> dict[Id, WaitFacts]:
    """Processes that are waited for and were not inspected, and those that they wait for."""
    found: dict[Id, WaitFacts] = {}
    below = [(stack.get("host"), entry.get("wait") or {}) for stack in stacks for entry in all_entries(stack)]
    while below:
        behind = [(host, facts) for host, wait in below for facts in wait.get("processes") or []]
        new = {(host, facts["pid"]): facts for host, facts in behind if (host, facts["pid"]) not in seen}
        found |= new
        seen |= set(new)
        below = [(host, facts.get("wait") or {}) for (host, _), facts in new.items()]
    return found


def ended_program_nodes(stacks: Sequence[WaitFacts], seen: Set[Id]) -> Iterator[Node]:
    """Programs that have ended, and that a pipe leads to which is read or written."""
    found: dict[Id, Node] = {}
    for stack in stacks:
        for wait in (entry["wait"] for entry in all_entries(stack) if (entry.get("wait") or {}).get("program")):
            program = wait["program"]
            if program["exit"]:
                label = f"process {program['name']} (pid {program['pid']})"
                activity = f"has ended ({exit_text(str(program['exit']))}){_heirs(wait, program)}"
                identity = (stack.get("host"), program["pid"], "process")
                found.setdefault(identity, Node(identity, label, activity=activity, gone="ended", background=True))
    return (node for identity, node in found.items() if identity[:2] not in seen)


def _heirs(wait: WaitFacts, program: WaitFacts) -> str:
    """Who has inherited the end of a pipe from a program that has ended, and only keeps it open."""
    others = [each for each in wait.get("processes") or [] if each["pid"] != program["pid"]]
    if not others:
        return ""
    names = ", ".join(f"process {each['pid']} ({str(each['command'])[:60]})" for each in others[:2])
    return f"; {names} has inherited its end of the pipe, so no end of file comes"


def stranger_node(host: Any, facts: WaitFacts) -> Node:
    """A process of which only the kernel's information is known."""
    ended = facts["state"] in ("zombie", "dead")
    state = {"running": "is running", "sleeping": "has not ended", "stopped": "is suspended by a signal (SIGSTOP)"}
    activity = f"has ended ({exit_text(str(facts.get('exit')))})" if ended else state.get(facts["state"], "is waiting")
    label = f"process {facts['pid']} ({str(facts['command'])[:60]})"
    wait = facts.get("wait") or {}
    gone = "ended" if ended else "suspended" if facts["state"] == "stopped" else ""
    # It matters only to who waits for it.
    return Node((host, facts["pid"], "process"), label, wait=wait, activity=activity, gone=gone, background=True)


def _with_notes(activity: str, *notes: str) -> str:
    told = "; ".join(filter(None, notes))
    return f"{activity} ({told})" if told else activity


def _left_alone(entry: WaitFacts) -> str:
    """What its loop has to work through and did not touch between two looks."""
    tables: Mapping[str, int] = entry.get("untouched") or {}
    told = [f"`{name}` ({size} {'entry' if size == 1 else 'entries'})" for name, size in tables.items()]
    return f"its loop has taken nothing out of {listed(told)} between two looks" if told else ""


def _in_vain(loop: WaitFacts) -> str:
    """What a loop keeps that goes round and changes nothing."""
    size, where = loop["size"], f"{str(loop['file']).rpartition('/')[2]}:{loop['loop']}"
    entries = f"its {'entry' if size == 1 else f'{size} entries'}" + (f" ({loop['first']})" if loop["first"] else "")
    kept = f"`{loop['table']}` keeps {entries}, and nothing else that it has changes"
    taken = f"; {loop['taken']}" if loop["taken"] else ""
    return f"goes round a loop ({where}) without progress: between two looks {kept}{taken}; it is"


def _label(thread: WaitFacts, who: str, *, alone: bool, single: bool) -> str:
    """The process, where one thread of it matters; else the thread, with its process where there are several."""
    if single and thread["main"]:
        return who
    name = "the main thread" if thread["main"] else f"thread {thread['thread']}"
    if str(thread["thread"]).startswith("Dummy-"):
        called = _called_by_ray(thread)
        name = f"call {called} ({name})" if called else f"{name} (not started by Python's threading)"
    return name if alone else f"{name} of {who}"


def _called_by_ray(thread: WaitFacts) -> str:
    """The method of a threaded actor that a thread of Ray runs."""
    frames = thread.get("frames") or []
    own = [str(frame["function"]).rpartition(".")[2] for frame in frames if is_users(str(frame["file"]))]
    return own[-1] if own and any("/ray/" in str(frame["file"]) for frame in frames) else ""


def _fate(stack: WaitFacts) -> dict[str, Any]:
    """What became of a process that has ended, crashed or is stopped."""
    state, message = str(stack.get("state") or ""), str(stack.get("message") or "").partition("\n")[0]
    if raised := stack.get("raised"):
        where = place_text(raised.get("place"))
        kept = [t["thread"] for t in stack.get("threads") or [] if not t["main"] and not t.get("daemon", True)]
        alive = f"; its process is kept alive by thread {', '.join(kept[:3])}" if kept else ""
        return {"activity": f"raised {raised['message']}" + (f" at {where}" if where else "") + alive, "gone": "raised"}
    where = place_text(stack.get("raised_at")) or _stopped_place(stack)
    if message and (state in ("crashed", "exited") or stack.get("reason") == "exception"):
        held = ", and is held for inspection" if state == "stopped" else ""
        activity = f"raised {message}" + (f" at {where}" if where else "") + held
        return {"activity": activity, "gone": "raised"} | _stopped_as(stack)
    if stack.get("lost") or state in ("exited", "gone"):
        how = f" ({exit_text(str(stack['exit']))})" if stack.get("exit") else ""
        return {"activity": f"has ended{how}", "gone": "ended"}
    if stack.get("suspended"):
        return {"activity": "is suspended by a signal (SIGSTOP)", "gone": "suspended"}
    if state == "stopped":
        return {"activity": f"is stopped by the debugger at {where}", "gone": "paused"} | _stopped_as(stack)
    return {}


def _stopped_as(stack: WaitFacts) -> dict[str, str]:
    """The name for `rldbg attach`; the one that the user gave a process is added to it in brackets."""
    return {"stopped_as": str(stack["who"]).partition(" (")[0]} if stack.get("state") == "stopped" else {}


def _stopped_place(stack: WaitFacts) -> str:
    return f"{str(stack['file']).rpartition('/')[2]}:{stack['line']}" if stack.get("file") else ""


def _is_everyday(entry: WaitFacts) -> bool:
    """Whether what a thread handles meanwhile is the end of something, not a failure."""
    kind = str((entry.get("handles") or {}).get("message") or "").partition(":")[0].rpartition(".")[2]
    return kind in _EVERYDAY


def _node(identity: Id, label: str, entry: WaitFacts, stack: WaitFacts) -> Node:
    wait = dict(entry["wait"])
    wait["handles"] = "" if _is_everyday(entry) and wait.get("kind") not in _RANKS_MEET else handled_text(entry)
    speaks = entry.get("main") if stack.get("raised") else stack.get("thread") in (None, entry.get("thread"))
    fate = _fate(stack) if speaks else {}
    activity = _ACTIVITIES.get(str(wait.get("kind")), "")
    if wait.get("kind") == "sleep" and "task" in entry:
        activity = "sleeps (asyncio.sleep)"
        # Nothing wakes it while the thread of its event loop is blocked.
        wait = {"kind": "turn"} if blocked_loops(stack) else wait
    if wait.get("own_limit"):
        activity = "waits for a time limit of its own"
    if wait.get("polls"):
        ended = ended_children(stack)
        wait["lost"] = unchanged_text(wait, stack)
        looks = "polls without sleeping" if wait["kind"] == "computing" else "polls"
        found = [*filter(None, [lock_file_text(wait.get("lock_file") or {})]), *ended]
        told = tuple(f"/{name}" for name in _QUOTED.findall(wait["polls"]))
        files = [path for path in wait.get("awaits_files") or [] if not f"/{path}".endswith(told)]
        asked = f", which looks for {listed(files)}" if files else ""
        activity = f"{looks} (a loop {wait['polls']}{asked}{'; ' if found else ''}{', '.join(found)})"
    if entry.get("moved"):
        # It is not stuck: what it waits for now it did not wait for a moment ago.
        waits = wait.get("kind") not in (None, "", *RESTING)
        now = f"{AT_THE_MOMENT} {thing(wait)}" if waits else ""
        wait, activity = {}, _with_notes("is running", now, _left_alone(entry))
    elif wait.get("kind") == "computing":
        activity = _with_notes(activity, _left_alone(entry))
    if entry.get("vain") and not wait.get("polls"):
        wait, activity = {"kind": "in_vain"}, _in_vain(entry["vain"])
    if wait.get("kind") == "idle" and any(not each.get("background", True) for each in all_entries(stack)):
        activity = "runs its methods in other threads or tasks"
    elif wait.get("kind") == "idle" and (raised := last_raised(stack)):
        activity = f"{activity}; {raised} in the last one that failed"
    place = place_text(entry.get("place")) if wait.get("kind") != "idle" else ""
    over = wait.get("kind") in _OVER or wait.get("at_exit")
    background = bool(entry.get("background")) and not (entry.get("main") and (fate or over))
    if activity == "is" and (entry.get("kernel") or {}).get("state") == "sleeping":
        activity = "waits in a call that is not recognised"
    elif activity == "is" and not place:
        activity = "does something that is not recognised"
    gone = "ended" if wait.get("polls") and ended_children(stack, failed=True) else ""
    gone = "paused" if wait.get("kind") == "debugger" else gone
    facts: dict[str, Any] = {"activity": activity, "gone": gone} | fate
    facts["users_line"] = is_users(str((entry.get("place") or {}).get("file") or ""))
    facts["in_own_line"] = any(is_users(str(frame["file"])) for frame in (entry.get("frames") or [])[:1])
    # A thread of Python has a `run` of its own.
    frames = [frame for frame in entry.get("frames") or [] if not is_standard(str(frame["file"]))]
    facts["functions"] = frozenset(str(frame["function"]).rpartition(".")[2] for frame in frames)
    facts["connections"] = frozenset(entry.get("connections") or ())
    facts["writes"] = frozenset(entry.get("writes") or ())
    facts["may_send"] = bool(_SENDING & {*(entry.get("may_call") or ())})
    facts["serves"] = bool(entry.get("serves"))
    facts["route"] = entry.get("route") or ()
    facts["answers"] = entry.get("answers")
    facts["enters"] = entry.get("enters") or {}
    facts["asks"] = str(entry.get("asks") or "")
    facts["gives"] = entry.get("gives") or ()
    facts["job"] = str(stack.get("job") or "")
    facts["calls"] = frozenset(entry.get("calls") or ())
    facts["calls_later"] = entry.get("calls_later") or {}
    return Node(identity, label, place, {} if fate else wait, background=background, rank=stack.get("rank"), **facts)
