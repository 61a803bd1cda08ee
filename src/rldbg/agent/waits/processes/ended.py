"""Threads and processes of a program that are gone, and the exception that ended its main program."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..code.places import users_place
from ..reading.kernel import Facts, process_facts
from ..reading.objects import Frame, Object, exception_text, is_a

# Those that pools and queues of the standard library start and end by themselves, and those that Python did not start.
_LIBRARYS_THREADS = ("ThreadPoolExecutor", "QueueFeederThread", "Dummy-")
OUR_THREADS = "rldbg-"
"""How the names of threads begin that the agent and the recorder start."""


def ended_threads(modules: Mapping[str, Object], pid: int) -> list[Facts]:
    """Those that an object of a Ray actor keeps have the name of its attribute with them."""
    found, kept = [], _kept_by_actor(modules)
    for thread in _remembered(modules, "threading"):
        # The system gives the ident of a thread that has ended to the next one; its own number is not used again soon.
        native, name = thread.get("_native_id"), thread.get("_name")
        if native is not None and native.number() and not Path(f"/proc/{pid}/task/{native.number()}").exists():
            text = (name.text() if name is not None else "") or ""
            if not text.startswith((OUR_THREADS, *_LIBRARYS_THREADS)) and text != "MainThread":
                found.append({"kind": "thread", "name": text, "kept_as": kept.get(thread.address, "")})
    return found


def _kept_by_actor(modules: Mapping[str, Object]) -> dict[int, str]:
    """What the attributes of the actor are that runs in this process, by address."""
    module = modules.get("ray._private.worker")
    worker = module.get("global_worker") if module is not None else None
    actors = worker.get("actors") if worker is not None else None
    attributes = [each for _, actor in actors.pairs() for each in actor.attributes().items()] if actors else []
    return {value.address: name for name, value in attributes}


def own_threads(modules: Mapping[str, Object]) -> set[int]:
    """Those of the agent."""
    found = set()
    for thread in _remembered(modules, "threading"):
        native, name = thread.get("_native_id"), thread.get("_name")
        if native is not None and name is not None and (name.text() or "").startswith(OUR_THREADS):
            found.add(native.number() or 0)
    return found


def ended_processes(modules: Mapping[str, Object]) -> list[Facts]:
    found = []
    for process in _remembered(modules, "multiprocessing.process"):
        how = ended_process(process)
        if how:
            name, popen = process.get("_name"), process.get("_popen")
            pid = popen.get("pid") if popen is not None else None
            text = (name.text() if name is not None else "") or "process"
            found.append({"kind": "process", "name": text, "pid": pid.number() if pid else None, "exit": how})
    return found


def _remembered(modules: Mapping[str, Object], name: str) -> list[Object]:
    """What a module of the standard library started and has not forgotten: a weak set of objects."""
    module = modules.get(name)
    every = module.get("_dangling") if module is not None else None
    entries = (every.get("data") or every).elements() if every is not None else []
    return [each for entry in entries if (each := entry.referent()) is not None]


def ended_process(process: Object) -> str:
    """How a `multiprocessing.Process` or `subprocess.Popen` ended; empty while it lives or was never started."""
    popen = process.get("_popen") if is_a(process, "BaseProcess") else process
    pid = popen.get("pid") if popen is not None else None
    if popen is None or pid is None or not pid.number():
        return ""
    code = popen.get("returncode")
    number = code.number() if code is not None else None
    if number is not None:
        return f"signal {-number}" if number < 0 else f"exit code {number}"
    facts = process_facts(pid.number() or 0)
    return "" if facts and facts["state"] != "zombie" else str(facts.get("exit") or "unknown exit code")


def last_exception(modules: Mapping[str, Object]) -> dict[str, Any] | None:
    """What ended the main program of a process that is still there (Python keeps it in `sys`): type, message, line."""
    module = modules.get("sys")
    error = (module.get("last_exc") or module.get("last_value")) if module is not None else None
    return raised_facts(error)


def raised_facts(error: Object | None) -> dict[str, Any] | None:
    """Message and line of an exception; the line of the user's code where a library raised it."""
    if error is None or not is_a(error, "BaseException"):
        return None
    frames: list[Frame] = error.raised_in()
    user = users_place(frames)
    place = frames[user or 0] if frames else None
    found: dict[str, Any] = {"message": exception_text(error)}
    if place is not None:
        found["place"] = {"file": place.file, "line": place.line, "function": place.function}
    return found
