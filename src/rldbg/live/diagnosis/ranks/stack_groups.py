"""The stacks of many processes: equal ones together, the odd ones first; and what they say about a hang."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rldbg.agent import Message
from rldbg.agent.waits import is_users
from rldbg.live.diagnosis.graph.wait_graph import RESTING
from rldbg.live.diagnosis.graph.wait_words import handled_text, root_words, thing
from rldbg.live.diagnosis.hang import HangDiagnosis, diagnose
from rldbg.live.diagnosis.ranks.flight_recorder import read_record, waits_of
from rldbg.live.diagnosis.waits import EQUAL_SHAPES, Pending, RankView, Waits


@dataclass(frozen=True, slots=True)
class StackGroup:
    """Threads or tasks of processes that are at the same place: `who` are the processes; `thread` is the first one, and
    `others` are those of other names."""

    who: tuple[str, ...]
    thread: str
    frames: tuple[Message, ...]
    waiting: str = ""
    unanswered: str = ""
    raised: str = ""
    others: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "who": list(self.who),
            "thread": self.thread,
            "other_threads": list(self.others),
            "waiting_in": self.waiting.removeprefix("in ") or None,
            "unanswered": self.unanswered or None,
            "raised": self.raised or None,
            "frames": list(self.frames),
        }


def group_stacks(stacks: Sequence[Message]) -> list[StackGroup]:
    """Smallest group first; within a size, by name. Other threads and tasks with code of the user are groups too."""
    groups: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    firsts: dict[tuple[Any, ...], Message] = {}
    for stack in stacks:
        for thread in _shown_threads(stack):
            frames = tuple((f["file"], f["line"], f["function"]) for f in thread.get("frames", []))
            main = bool(thread.get("main", True))
            key = (frames, _waiting(stack, thread), str(stack.get("unanswered") or ""), thread.get("raised", ""), main)
            groups.setdefault(key, []).append((stack["who"], "" if main else str(thread["thread"])))
            firsts.setdefault(key, thread)
    found = []
    for key, members in groups.items():
        first, (_, waiting, unanswered, raised, _) = firsts[key], key
        shown: tuple[Message, ...] = tuple(first.get("frames", []))
        who, names = (tuple(dict.fromkeys(each)) for each in zip(*members, strict=True))
        found.append(StackGroup(who, first.get("thread", ""), shown, waiting, unanswered, raised, names[1:]))
    return sorted(found, key=lambda group: (len(group.who) + len(group.others), group.who))


def _shown_threads(stack: Message) -> list[Message]:
    """The interesting thread first; then those that run code of the user, and tasks of asyncio in the same form. A
    thread that is held at an exception is shown where it raised."""
    first = interesting_thread(stack)
    held = _has_raised(stack) and stack["state"] == "stopped" and bool(first)
    if held and (frames := raised_frames(stack)):
        raised = {name: value for name, value in first.items() if name not in ("wait", "collective")}
        raised |= {"frames": frames, "raised": _first_line(stack)}
        return [raised, *_others(stack, first)]
    return [first, *_others(stack, first)]


def _others(stack: Message, first: Message) -> list[Message]:
    others = [t for t in stack.get("threads") or [] if t is not first and not t.get("background", True)]
    own = [task for task in stack.get("tasks") or [] if not task.get("background")]
    return [*others, *(task | {"thread": f"task {task['task']}", "main": False} for task in own)]


def raised_frames(stack: Message) -> list[Message]:
    """The frames of the exception that ended or holds a process, innermost first; none without its crash file."""
    try:
        frames = _crash_record(stack)["exceptions"][0]["frames"]
        return [{name: frame[name] for name in ("file", "line", "function")} for frame in frames]
    except (KeyError, IndexError, TypeError, OSError, ValueError):
        return []


def raised_in_thread(stack: Message) -> str:
    """The name of the thread that the last exception of a process has ended; empty where it ended something else."""
    try:
        record = _crash_record(stack)
        return str(record["thread"]) if record["where"] == "thread" else ""
    except (KeyError, TypeError, OSError, ValueError):
        return ""


def _crash_record(stack: Message) -> Message:
    record: Message = json.loads(Path(str(stack["crash_file"])).read_text(encoding="utf-8"))
    return record


def interesting_thread(stack: Message) -> Message:
    """The thread in a collective, else the one that stopped, else the main thread."""
    threads: list[Message] = stack.get("threads") or []
    for thread in threads:
        if thread.get("collective"):
            return thread
    stopped = next((thread for thread in threads if thread["thread"] == stack.get("thread")), None)
    return stopped or (threads[0] if threads else {})


def users_frame(frames: Sequence[Message]) -> Message | None:
    """The innermost frame that is neither the standard library's nor an installed package's, else the innermost."""
    own = (frame for frame in frames if is_users(frame["file"]))
    return next(own, frames[0] if frames else None)


def _waiting(stack: Message, thread: Message) -> str:
    call, wait = thread.get("collective"), thread.get("wait") or {}
    if call:
        return f"in {_pending(stack, call)}"
    return f"for {thing(wait)}" if wait and wait["kind"] not in RESTING else ""


def _pending(stack: Message, call: Message) -> Pending:
    known: list[Message] = stack.get("groups") or []
    group: Message = next((each for each in known if each["name"] == call.get("group")), {})
    op, shape, root = str(call["op"]), str(call.get("shape") or ""), call.get("root")
    if root is not None:
        shape = f"{shape if op in EQUAL_SHAPES else ''} {root_words(op, root)}".strip()
    return Pending(
        group=str(call.get("group") or ""),
        sequence=int(group.get("sequence") or 0),
        op=op,
        shape=shape,
        peer=call.get("peer"),
    )


def diagnose_stacks(before: Sequence[Message], stacks: Sequence[Message]) -> HangDiagnosis:
    """The combined verdict of stacks, group counters and flight records from two snapshots: ranks that moved are not
    hung."""
    moved = [
        f"{after['who']}: {_counters(first)} -> {_counters(after)}"
        for first, after in zip(before, stacks, strict=False)
        if first.get("pid") == after.get("pid") and first.get("groups") and _counters(first) != _counters(after)
    ]
    if moved:
        return HangDiagnosis("collectives are being called: the ranks move", "moving", (), tuple(moved[:8]))
    ranked = [stack for stack in stacks if stack.get("rank") is not None]
    groups = {str(g["name"]): tuple(g["ranks"]) for stack in ranked for g in stack.get("groups") or []}
    for name in {str(g["name"]) for stack in ranked for g in stack.get("process_groups") or [] if not g["ranks"]}:
        # Its ranks have numbers of their own there: those of the job are the ones that have it.
        having = [stack for stack in ranked if any(g["name"] == name for g in stack.get("groups") or [])]
        groups[name] = tuple(sorted(int(stack["rank"]) for stack in having))
    records = {int(s["rank"]): read_record(bytes.fromhex(s["flight_record"])) for s in ranked if s.get("flight_record")}
    recorded = waits_of(records)
    views = []
    for stack in ranked:
        view = _view(stack)
        record = recorded.views.get(view.rank)
        if record is not None and record.pending:
            # The flight recorder knows of operations that the code has left and the device has not finished.
            view = replace(record, who=view.who, place=view.place, state=view.state, handles=view.handles)
        views.append(view)
    return diagnose(Waits({view.rank: view for view in views}, {**groups, **recorded.groups}))


def _counters(stack: Message) -> dict[str, Any]:
    return {str(group["name"]): group["sequence"] for group in stack.get("groups") or []}


def _view(stack: Message) -> RankView:
    thread = interesting_thread(stack)
    raised = _first_line(stack) if _has_raised(stack) else ""
    frame = stack.get("raised_at") if raised else users_frame(thread.get("frames") or [])
    place = f"{frame['file'].rpartition('/')[2]}:{frame['line']} ({frame['function']})" if frame else ""
    if not place and stack.get("file"):
        place = f"{str(stack['file']).rpartition('/')[2]}:{stack['line']}"
    state = "lost" if stack.get("lost") else "suspended" if stack.get("suspended") else str(stack["state"])
    call = thread.get("collective") if not raised else None
    pending = (_pending(stack, call),) if call else ()
    handles = handled_text(thread) if call else ""
    entered = {str(group["name"]): int(group["sequence"] or 0) for group in stack.get("groups") or []}
    view = RankView(int(stack["rank"]), str(stack["who"]), place, state, pending, entered, handles=handles)
    return replace(view, raised=raised, crash_file=str(stack.get("crash_file") or ""))


def _first_line(stack: Message) -> str:
    return str(stack.get("message") or "").partition("\n")[0]


def _has_raised(stack: Message) -> bool:
    return bool(stack.get("message")) and (stack["state"] != "running" or stack.get("reason") == "exception")
