"""Inspects processes of this host that have no agent: stacks and waits, as plain data.

`main` reads a request (a JSON object) from its first argument and prints a JSON list, also from a zip file elsewhere.
"""

import contextlib
import json
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .calls.blocking import wait_of
from .calls.looking import Looking
from .calls.native_calls import add_native_waits, may_wait_for_gpu, may_wait_for_interpreter
from .code.places import own_frames
from .code.source import Sources
from .moving import awaiting, mark_moved, watch_tasks
from .others.backlog import backlog
from .others.rounds import current_round
from .processes.ended import ended_process
from .processes.kernel_threads import thread_facts
from .processes.said_files import add_said
from .reading.chosen import (
    chosen_processes,
    describe,
    told_rank,
    with_given_names,
    with_said_ranks,
    without_inherited_ranks,
)
from .reading.kernel import Facts, children_of, tracing_note
from .reading.layout import LayoutError, MemoryLayout, measured_layout
from .reading.memory import ProcessMemory
from .reading.nccl import lasting, nccl_notes, nccl_troubles
from .reading.process_views import FarProcess, ThreadView
from .reading.spied import SpiedProcess, find_py_spy, spied_threads
from .snapshot import snapshot
from .thread_entries import frame_facts

# What reading a process raises that changes while it is read.
_CHANGED_MEANWHILE = (ValueError, IndexError, KeyError, OverflowError, RecursionError, struct.error)
# A process that runs is often in another place when it is read again.
_TRIES = 5


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
        watch_tasks(before, looks.tasks, max(apart_s - (time.monotonic() - begun), apart_s / 2))
    seen = {pid: looks.rounds_again(pid, before.get(pid, {}), looks.at(pid)) for pid in wanted}
    if apart_s:
        # What goes on while it is read has a bit of both in it.
        watch_tasks(before, looks.tasks, 0.0)
    found = [looks.natively(pid, mark_moved(before.get(pid, {}), entry, apart_s)) for pid, entry in seen.items()]
    with_said_ranks(with_given_names(without_inherited_ranks(found)))
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
                    process = whole_process(memory)
                    seen = process.threads()
                    threads = [replace(thread, frames=own_frames(thread.frames)) for thread in seen]
                    found = {"children": children_of(pid), "threads": [self._glanced(pid, each) for each in threads]}
                    return found | {"tasks": awaiting(process.modules()), "seen_s": time.monotonic()}
            return {}
        finally:
            memory.close()

    def tasks(self, pid: int) -> list[Facts]:
        try:
            memory = ProcessMemory(pid, self._layout(pid))
        except (OSError, LayoutError):
            return []
        try:
            return awaiting(FarProcess(memory).modules())
        except (OSError, LayoutError, *_CHANGED_MEANWHILE):
            return []
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
                process = whole_process(memory)
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


def whole_process(memory: ProcessMemory) -> FarProcess:
    """The process, read anew as long as what was read of its main thread is of two moments. It stays so for a program
    in C that runs Python."""
    process = FarProcess(memory)
    for _ in range(_TRIES):
        if not process.is_torn():
            break
        memory.forget()
        process = FarProcess(memory)
    return process


if __name__ == "__main__":
    main()
