"""Inspects processes of this host that have no agent: stacks and waits, as plain data.

`main` reads a request (a JSON object) from its first argument and prints a JSON list, also from a zip file elsewhere.
"""

import contextlib
import json
import os
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .backlog import backlog, untouched
from .blocking import wait_of
from .chosen import (
    chosen_processes,
    describe,
    told_rank,
    with_given_names,
    without_inherited_ranks,
)
from .ended import ended_process
from .kernel import Facts, children_of, tracing_note
from .kernel_threads import thread_facts
from .layout import LayoutError, MemoryLayout, measured_layout
from .looking import Looking
from .memory import ProcessMemory
from .native_calls import add_native_waits, may_wait_for_gpu, may_wait_for_interpreter
from .nccl import lasting, nccl_notes, nccl_troubles
from .places import own_frames
from .process_views import FarProcess, ThreadView
from .rounds import current_round, in_vain
from .said_files import add_said
from .snapshot import frame_facts, snapshot
from .source import Sources
from .spied import SpiedProcess, find_py_spy, spied_threads

_RAY_TASK_DIGITS = 48
# What reading a process raises that changes while it is read.
_CHANGED_MEANWHILE = (ValueError, IndexError, KeyError, OverflowError, RecursionError, struct.error)
# A process that runs is often in another place when it is read again.
_TRIES = 5
# Who is woken from these got what it waited for, and waits for the next; a condition may have been notified in vain.
_ENDED_BY_WAKING = frozenset(
    {"lock", "queue_get", "queue_put", "event", "semaphore", "barrier", "pipe", "future", "thread"}
)
# Who waits for one of these uses no CPU time; the share that one who takes them again and again uses at least.
_SHARE_OF_MOVING = 0.05

# These use CPU time while they wait.
_SPINNING = frozenset({"cuda", "collective"})


def main() -> None:
    request = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(look(**request)))


def look(
    pids: Sequence[int] = (),
    *,
    torchrun: bool = False,
    slurm_job: str = "",
    everything: bool = False,
    children: bool = True,
    native: bool = False,
    with_locals: bool = False,
    apart_s: float = 0.0,
    py_spy: str = "",
) -> list[Facts]:
    """One entry per process. With `apart_s` each is looked at twice, and threads that moved are marked."""
    wanted = chosen_processes(pids, torchrun=torchrun, slurm_job=slurm_job, everything=everything, children=children)
    looks = _Looks(native=native, with_locals=with_locals, py_spy=py_spy, explaining=apart_s > 0)
    said_before = nccl_troubles(wanted) if apart_s else []
    begun = time.monotonic()
    before = {pid: looks.glance(pid) for pid in wanted} if apart_s else {}
    if apart_s:
        time.sleep(max(apart_s - (time.monotonic() - begun), apart_s / 2))
    seen = {pid: looks.rounds_again(pid, before.get(pid, {}), looks.at(pid)) for pid in wanted}
    found = [looks.natively(pid, mark_moved(before.get(pid, {}), entry, apart_s)) for pid, entry in seen.items()]
    with_given_names(without_inherited_ranks(found))
    if apart_s:
        add_said(found)
    if found:
        said = nccl_troubles(wanted) if said_before or not apart_s else []
        troubles = lasting(said_before, said) if apart_s else said
        found[0] |= {"nccl": troubles, "notes": nccl_notes(wanted, troubles)}
    return found


class _Looks:
    """Keeps the layouts of interpreters, which take a while to measure."""

    def __init__(self, *, native: bool, with_locals: bool, py_spy: str, explaining: bool) -> None:
        self._native = native
        self._explaining = explaining
        self._with_locals = with_locals
        self._py_spy = py_spy or find_py_spy()
        self._layouts: dict[str, MemoryLayout | str] = {}
        self._sources: dict[str, Sources] = {}

    def glance(self, pid: int) -> Facts:
        """A quick look: where the threads are, how much CPU time they have used, and the child processes."""
        try:
            memory = ProcessMemory(pid, self._layout(pid))
        except (OSError, LayoutError):
            return {}
        try:
            for _ in range(_TRIES):
                with contextlib.suppress(OSError, LayoutError, *_CHANGED_MEANWHILE):
                    seen = FarProcess(memory).threads()
                    threads = [replace(thread, frames=own_frames(thread.frames)) for thread in seen]
                    return {"children": children_of(pid), "threads": [self._glanced(pid, thread) for thread in threads]}
            return {}
        finally:
            memory.close()

    def _glanced(self, pid: int, thread: ThreadView) -> Facts:
        kernel = thread_facts(pid, thread.native)
        found: Facts = {"native": thread.native, "frames": list(map(frame_facts, thread.frames)), "kernel": kernel}
        found["backlog"] = backlog(thread.frames, self._sources_of(pid))
        found["round"] = current_round(thread.frames, self._sources_of(pid))
        if any("/ray/" in frame.file for frame in thread.frames):
            # A loop over calls of Ray is in the same place each time, for another task.
            found["wait"] = wait_of(Looking(thread.frames, kernel, self._sources_of(pid), ended_process))
        return found

    def _sources_of(self, pid: int) -> Sources:
        """One set of files per container."""
        space = str(Path(f"/proc/{pid}/ns/mnt").readlink())
        return self._sources.setdefault(space, Sources(pid))

    def at(self, pid: int) -> Facts:
        entry = describe(pid)
        if entry["state"] == "exited":
            return entry
        reason = ""
        try:
            memory = ProcessMemory(pid, self._layout(pid))
            try:
                process = FarProcess(memory)
                entry |= snapshot(process, self._sources_of(pid), with_locals=self._with_locals)
                entry |= {"source": "memory"} | told_rank(entry, process.modules())
            finally:
                memory.close()
        except PermissionError:
            return entry | {"unanswered": tracing_note(pid)}
        except (OSError, LayoutError) as error:
            reason = str(error)
        except _CHANGED_MEANWHILE as error:
            reason = f"its memory could not be parsed ({type(error).__name__})"
        if not entry.get("threads"):
            threads = spied_threads(pid, self._py_spy, native=self._native)
            if isinstance(threads, str):
                return entry | {"unanswered": "; ".join(filter(None, (reason, threads)))}
            entry |= snapshot(SpiedProcess(pid, threads)) | {"source": "py-spy"}
        return entry

    def rounds_again(self, pid: int, before: Facts, entry: Facts) -> Facts:
        """Looks again at threads whose loop was seen before and is not now: what runs meanwhile is read in pieces that
        do not always fit."""
        old = {thread["native"] for thread in before.get("threads") or [] if thread.get("round")}
        for _ in range(_TRIES):
            lost = [each for each in entry.get("threads") or [] if each["native"] in old and not each.get("round")]
            if not lost:
                break
            again = {thread["native"]: thread for thread in self.glance(pid).get("threads") or []}
            for thread in lost:
                thread |= {name: again.get(thread["native"], {}).get(name, {}) for name in ("round", "backlog")}
        return entry

    def natively(self, pid: int, entry: Facts) -> Facts:
        """Adds native frames if requested; else only what they say about a process that uses a GPU."""
        if entry.get("source") != "memory":
            return entry
        threads = entry["threads"]
        unclear = self._explaining and (may_wait_for_interpreter(threads) or may_wait_for_gpu(pid, threads))
        if not self._native and not unclear:
            return entry
        frames = add_native_waits(pid, threads, self._py_spy)
        if isinstance(frames, str):
            return entry | {"note": f"no native frames: {frames}"}
        for thread in threads if self._native else ():
            if thread["native"] in frames:
                thread["frames"] = list(map(frame_facts, frames[thread["native"]]))
        return entry

    def _layout(self, pid: int) -> MemoryLayout:
        exe = str(Path(f"/proc/{pid}/exe").readlink())
        if exe not in self._layouts:
            try:
                self._layouts[exe] = measured_layout(pid)
            except LayoutError as error:
                self._layouts[exe] = str(error)
        found = self._layouts[exe]
        if isinstance(found, str):
            raise LayoutError(found)
        return found


def mark_moved(before: Facts, after: Facts, apart_s: float) -> Facts:
    """Marks the threads that are running, by their frames, CPU time or wake-ups. py-spy wakes the threads of a process
    that it inspects."""
    first = {thread["native"]: thread for thread in before.get("threads") or []}
    old_children, children = ({child["pid"] for child in each.get("children") or []} for each in (before, after))
    after["replaced_children"] = bool(old_children) and not old_children & children
    ticks = os.sysconf("SC_CLK_TCK")
    for thread in after.get("threads") or []:
        old = first.get(thread["native"])
        if old is None:
            continue
        thread["untouched"] = untouched(old, thread)
        used_s = (thread["kernel"].get("cpu", 0) - old["kernel"].get("cpu", 0)) / ticks
        kind, woken = thread["wait"]["kind"], not before.get("spied") and _was_woken(old, thread)
        thread["vain"] = in_vain(old, thread, woken=woken)
        ends = kind in _ENDED_BY_WAKING and (
            (woken and thread["kernel"].get("one_end")) or used_s > max(_SHARE_OF_MOVING * apart_s, 1.5 / ticks)
        )
        # Each piece that is read or written wakes it.
        ends |= kind == "disk" and woken
        if used_s > 0.5 * apart_s and kind not in _SPINNING:
            thread["holds"] = [*(thread.get("holds") or []), *_may_hold(thread)]
            thread["wait"] = {"kind": "computing"}
        elif polling := _in_one_loop(old, thread):
            thread |= {name: polling[name] for name in ("wait", "frames", "place", "kernel")}
            thread["wait"] |= {"again": True}
        elif ends or _places(old) != _places(thread) or _asks_anew(old, thread):
            thread["holds"] = [*(thread.get("holds") or []), *_may_hold(thread)]
            thread["moved"] = True
            thread["asks"] = _asked_again(old, thread)
        elif woken and kind == "sleep":
            thread["wait"]["again"] = True
    return after


def _may_hold(thread: Facts) -> list[Facts]:
    """A thread that goes on has from time to time the locks that its line takes."""
    choices = thread["wait"].get("choices") or []
    place = thread.get("place") or {}
    return [{**place, "key": each["key"], "name": each["name"], "loops": False} for each in choices if place]


def _was_woken(old: Facts, thread: Facts) -> bool:
    before, now = old["kernel"].get("wakes"), thread["kernel"].get("wakes")
    return None not in (before, now) and before != now


def _in_one_loop(old: Facts, thread: Facts) -> Facts | None:
    """Of two looks at a loop that asks Ray and sleeps, where what it looks for is the same, the one at the sleep."""
    for sleeps, asks in ((old, thread), (thread, old)):
        places = [each.get("place") or {} for each in (sleeps, asks)]
        same = all(places[0].get(name) == places[1].get(name) for name in ("file", "function"))
        waits = [each.get("wait") or {} for each in (sleeps, asks)]
        polled = waits[0].get("polls") if waits[0].get("kind") == "sleep" else ""
        if same and polled and polled == waits[1].get("asked_in"):
            return sleeps
    return None


def _asked_again(old: Facts, thread: Facts) -> str:
    """What a loop looks for that asks Ray in both looks, if it is the same."""
    asked = {str((each.get("wait") or {}).get("asked_in") or "") for each in (old, thread)}
    return asked.pop() if len(asked) == 1 else ""


def _asks_anew(old: Facts, thread: Facts) -> bool:
    """It waits for other tasks of Ray than before."""
    waits = [each.get("wait") or {} for each in (old, thread)]
    # From outside, objects of Ray as they are in memory: each begins with the number of its references.
    before, now = (
        [str(task)[16 * (len(task) > _RAY_TASK_DIGITS) :] for task in wait.get("tasks") or ()] for wait in waits
    )
    return bool(before and now) and before != now


def _places(thread: Facts) -> list[Any]:
    return [(frame["file"], frame["function"]) for frame in thread["frames"]]


if __name__ == "__main__":
    main()
