"""Looks at processes of this host that carry no agent: stacks and waits, as plain data.

`main` reads a request (a JSON object) from its first argument and prints a JSON list, also from a zip file elsewhere.
"""

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .kernel import Facts, all_processes, descendants, environment_of, process_facts, thread_facts, tracing_note
from .layout import Layout, LayoutError, measured_layout
from .memory import Memory
from .nccl import nccl_notes
from .objects import Frame, Object
from .process_views import FarProcess, ProcessView, ThreadView
from .snapshot import frame_facts, snapshot
from .source import Sources

_PY_SPY_S = 20.0
_MOST = 256
_TORCHRUN = re.compile(r"\btorchrun\b|torch\.distributed\.(run|launch)|torch/distributed/run\.py")


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
    everyone = all_processes()
    wanted = list(pids)
    if torchrun or everything:
        wanted += _torchrun_workers(everyone)
    if everything and not wanted:
        wanted += _own_pythons(everyone)
    if slurm_job:
        wanted += [pid for pid in everyone if environment_of(pid).get("SLURM_JOB_ID") == slurm_job and _is_python(pid)]
    if children:
        wanted += [child for pid in list(wanted) for child in descendants(pid, everyone) if _is_python(child)]
    above = _above(everyone)
    wanted = [pid for pid in dict.fromkeys(wanted) if pid in pids or pid not in above][:_MOST]
    looks = _Looks(native=native, with_locals=with_locals, py_spy=py_spy)
    begun = time.monotonic()
    before = {pid: looks.glance(pid) for pid in wanted} if apart_s else {}
    if apart_s:
        time.sleep(max(apart_s - (time.monotonic() - begun), apart_s / 2))
    found = [mark_moved(before.get(pid, {}), looks.at(pid), apart_s) for pid in wanted]
    if found and (notes := nccl_notes(wanted)):
        found[0]["notes"] = notes
    return found


class _Looks:
    """Keeps the layouts of interpreters, which take a while to measure."""

    def __init__(self, *, native: bool, with_locals: bool, py_spy: str) -> None:
        self._native = native
        self._with_locals = with_locals
        self._py_spy = py_spy or find_py_spy()
        self._layouts: dict[str, Layout | str] = {}
        self._sources: dict[str, Sources] = {}

    def glance(self, pid: int) -> Facts:
        """Only where the threads are and how much processor time they have used."""
        try:
            memory = Memory(pid, self._layout(pid))
        except (OSError, LayoutError):
            return {}
        try:
            threads = FarProcess(memory).threads()
        finally:
            memory.close()
        return {
            "threads": [
                {"native": t.native, "frames": list(map(frame_facts, t.frames)), "kernel": thread_facts(pid, t.native)}
                for t in threads
            ]
        }

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
            memory = Memory(pid, self._layout(pid))
            try:
                process = FarProcess(memory)
                entry |= snapshot(process, self._sources_of(pid), with_locals=self._with_locals)
                entry |= {"source": "memory"} | _told_rank(entry, process.modules())
            finally:
                memory.close()
        except PermissionError:
            return entry | {"unanswered": tracing_note(pid)}
        except (OSError, LayoutError) as error:
            reason = str(error)
        except (ValueError, IndexError, KeyError, OverflowError, RecursionError, struct.error) as error:
            # The process changed while it was read.
            reason = f"its memory could not be understood ({type(error).__name__})"
        if not entry.get("threads") or self._native:
            self._spy(pid, entry, reason)
        return entry

    def _layout(self, pid: int) -> Layout:
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

    def _spy(self, pid: int, entry: Facts, reason: str) -> None:
        threads = spied_threads(pid, self._py_spy, native=self._native)
        if isinstance(threads, str):
            if not entry.get("threads"):
                entry["unanswered"] = "; ".join(filter(None, (reason, threads)))
            else:
                entry["note"] = f"no native frames: {threads}"
            return
        if not entry.get("threads"):
            entry |= snapshot(_SpiedProcess(pid, threads)) | {"source": "py-spy"}
            return
        by_native = {thread.native: thread for thread in threads}
        for thread in entry["threads"]:
            if spied := by_native.get(thread["native"]):
                thread["frames"] = list(map(frame_facts, spied.frames))


class _SpiedFrame:
    """A frame of which only the place is known."""

    def __init__(self, file: str, line: int, function: str) -> None:
        self.file, self.line, self.function = file, line, function

    def locals(self) -> dict[str, Object]:
        return {}

    def variable(self, name: str) -> Object | None:
        return None


class _SpiedProcess:
    def __init__(self, pid: int, threads: list[ThreadView]) -> None:
        self.pid = pid
        self._threads = threads

    def threads(self) -> list[ThreadView]:
        return self._threads

    def modules(self) -> Mapping[str, Object]:
        return {}


_CHECK: type[ProcessView] = _SpiedProcess


def spied_threads(pid: int, tool: str, *, native: bool = False) -> list[ThreadView] | str:
    """Threads as py-spy sees them, else the reason why not. Native frames need the process to stand still a moment."""
    if not tool:
        return "py-spy is not installed (pip install py-spy)"
    options = ["--native"] if native else ["--nonblocking"]
    try:
        done = subprocess.run(
            [tool, "dump", "--json", *options, "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=_PY_SPY_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"py-spy: {type(error).__name__}"
    if done.returncode:
        complaint = done.stderr.strip().splitlines()
        refused = "ermission" in done.stderr or "not permitted" in done.stderr
        return tracing_note(pid) if refused else f"py-spy: {complaint[-1] if complaint else 'failed'}"
    found = []
    for thread in json.loads(done.stdout):
        frames: list[Frame] = [
            _SpiedFrame(str(f.get("filename") or ""), int(f.get("line") or 0), str(f["name"]))
            for f in thread.get("frames") or []
        ]
        name = str(thread.get("thread_name") or thread.get("thread_id"))
        found.append(ThreadView(name, int(thread.get("thread_id") or 0), int(thread.get("os_thread_id") or 0), frames))
    return found


def find_py_spy() -> str:
    beside = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    return beside or shutil.which("py-spy") or ""


def describe(pid: int) -> Facts:
    """Who a process is, from its command line and environment, in the form of a line of `rldbg ps`."""
    facts = process_facts(pid)
    environment = environment_of(pid)
    role = program(str(facts.get("command") or ""))
    rank = environment.get("RANK", "")
    number = int(rank) if rank.isdigit() else None
    gone = not facts or facts["state"] in ("zombie", "dead")
    return {
        "who": f"{role}/{number}" if number is not None else f"{role}@{pid}",
        "role": role,
        "rank": number,
        "world_size": int(environment["WORLD_SIZE"]) if environment.get("WORLD_SIZE", "").isdigit() else None,
        "state": "exited" if gone else "running",
        "host": socket.gethostname(),
        "pid": pid,
        "command": facts.get("command", ""),
        "suspended": facts.get("state") == "stopped",
        "exit": facts.get("exit", ""),
        "parent": facts.get("parent"),
        "threads": [],
        "unanswered": f"process {pid} has ended" if gone else "",
    }


def _told_rank(entry: Facts, modules: Mapping[str, Object]) -> Facts:
    """The rank that a process was given after it had started: a forked one changes its own environment."""
    module = modules.get("os")
    environment = module.get("environ") if module is not None else None
    data = environment.get("_data") if environment is not None else None
    told = {name: value.text() or "" for name, value in data.items()} if data is not None else {}
    found = {
        name: int(told[key]) for name, key in (("rank", "RANK"), ("world_size", "WORLD_SIZE")) if _is_number(told, key)
    }
    return found | ({"who": f"{entry['role']}/{found['rank']}"} if "rank" in found else {})


def _is_number(told: Mapping[str, str], name: str) -> bool:
    return told.get(name, "").isdigit()


def program(command: str) -> str:
    """What people call a process: the stem of its script, its module, or the title that Ray gave it."""
    if command.startswith("ray::"):
        return command.split()[0].removeprefix("ray::").partition("(")[0].partition(".")[0] or "worker"
    words = command.split()
    for number, word in enumerate(words):
        if word.endswith(".py"):
            return Path(word).stem
        if word == "-m" and number + 1 < len(words):
            return words[number + 1]
        if word == "-c":
            break
    return Path(words[0]).name if words else "process"


def mark_moved(before: Facts, after: Facts, apart_s: float) -> Facts:
    """Marks the threads whose frames or processor time say that they go on."""
    first = {thread["native"]: thread for thread in before.get("threads") or []}
    ticks = os.sysconf("SC_CLK_TCK")
    for thread in after.get("threads") or []:
        old = first.get(thread["native"])
        if old is None:
            continue
        used_s = (thread["kernel"].get("cpu", 0) - old["kernel"].get("cpu", 0)) / ticks
        if used_s > 0.5 * apart_s:
            thread["wait"] = {"kind": "computing"}
        elif _places(old) != _places(thread):
            thread["moved"] = True
    return after


def _places(thread: Facts) -> list[Any]:
    return [(frame["file"], frame["function"]) for frame in thread["frames"]]


def _torchrun_workers(everyone: Mapping[int, Facts]) -> list[int]:
    """Ranks that a launcher of this host started, and any other process that was given a rank."""
    launchers = {pid for pid, facts in everyone.items() if _TORCHRUN.search(facts["command"])}
    ranked = [pid for pid in _pythons(everyone) if "RANK" in (env := environment_of(pid)) and "WORLD_SIZE" in env]
    # A rank's own helpers inherit its rank.
    workers = [pid for pid in ranked if everyone[pid]["parent"] not in ranked]
    below = [pid for pid in workers if everyone[pid]["parent"] in launchers]
    return below or workers


def _above(everyone: Mapping[int, Facts]) -> set[int]:
    """This process and those that started it."""
    found, pid = set(), os.getpid()
    while pid in everyone and pid not in found:
        found.add(pid)
        pid = everyone[pid]["parent"]
    return found


def _own_pythons(everyone: Mapping[int, Facts]) -> list[int]:
    """All Python processes of this user, without this one and those above it."""
    above = _above(everyone)
    own = [pid for pid in _pythons(everyone) if pid not in above and Path(f"/proc/{pid}").stat().st_uid == os.geteuid()]
    return [pid for pid in own if "rldbg" not in everyone[pid]["command"]]


def _pythons(everyone: Iterable[int]) -> list[int]:
    return [pid for pid in everyone if _is_python(pid)]


def _is_python(pid: int) -> bool:
    try:
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False


if __name__ == "__main__":
    main()
