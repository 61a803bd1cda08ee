"""Crash files: what is recorded of an exception: chain, frames, source, locals, rank, step.

RUN/crashes/<time>-<role>[-<rank>]-<pid>-<n>.json, visible only when complete, written before the process is held:

    {"schema_version": 1, "who": {identity}, "time": t, "thread": "...", "where": "task|thread|child|process",
     "step": 12, "exceptions": [{"type", "message", "notes", "relation": "raised|part|cause|context",
                     "frames": [{"file", "line", "function", "source": {"first": 3, "lines": [...]},
                                 "locals": {name: {"type", "text", "tensor"?}}}]}]}

The exception that was raised last comes first; frames are innermost first. Text is cut, secrets are redacted.
"""

import json
import linecache
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from .post_mortem_adapter import exception_chain
from .stacks import frame_facts
from .values import cut, describe

# File names have at most 255 bytes.
_ROLE = 100
_FRAMES = 60
_LOCALS = 200
_AROUND = 5
_STEP_NAMES = ("global_step", "global_steps", "step", "train_step", "iteration", "rollout_id")
_CONTAINERS = (dict, list, tuple)
Redact = Callable[[Any, str], Any]


def crash_record(
    error: BaseException, *, who: dict[str, Any], where: str, redact: Redact | None, keep_values: bool = True
) -> dict[str, Any]:
    """`redact` None writes values as they are; `keep_values` False withholds them (no rules to redact by)."""
    record: dict[str, Any] = {
        "schema_version": 1,
        "who": who,
        "time": time.time(),
        "thread": threading.current_thread().name,
        "where": where,
        "step": _step(error.__traceback__),
        "exceptions": [_exception(each, relation, redact, keep_values) for each, relation in exception_chain(error)],
    }
    if not keep_values:
        record["withheld"] = "locals: the redaction rules of rldbg are not readable from this host"
    return record


def is_second_hand(error: BaseException) -> bool:
    """Whether a launcher only reports that a process it started has failed: there is nothing to inspect in it."""
    if type(error).__module__ == "torch.multiprocessing.spawn":
        return True
    return is_launchers_report(error)


def is_launchers_report(error: BaseException) -> bool:
    """Whether a launcher of ranks only says that they have failed."""
    launches = any(word in sys.argv[0] for word in ("torchrun", "accelerate", "deepspeed", "torch/distributed"))
    return type(error).__name__ == "ChildFailedError" or (launches and type(error).__name__ == "CalledProcessError")


def is_told_by_child(folder: Path, who: dict[str, Any]) -> bool:
    """Whether a process that this one started, directly or not, has written a crash file of its own."""
    for file in folder.glob("*.json"):
        try:
            child = json.loads(file.read_bytes())["who"]
            if child["host"] == who["host"] and who["pid"] in child["ancestors"]:
                return True
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return False


def is_end_by_signal(error: BaseException) -> bool:
    """Whether a launcher ends because it was sent a signal, which torchrun turns into an exception: nothing crashed."""
    kind = type(error)
    return kind.__name__ == "SignalException" and kind.__module__.startswith("torch.distributed.elastic")


def write_crash(folder: Path, record: dict[str, Any], number: int) -> Path:
    who = record["who"]
    rank = f"-{who['rank']}" if who.get("rank") is not None else ""
    role = str(who.get("role"))[:_ROLE]
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{role}{rank}")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(record["time"]))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{stamp}-{name}-{os.getpid()}-{number}.json"
    temporary = folder / f".{path.name}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(record, file, default=str)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return path


def _exception(error: BaseException, relation: str, redact: Redact | None, keep_values: bool) -> dict[str, Any]:
    frames = []
    for frame, line in list(traceback.walk_tb(error.__traceback__))[-_FRAMES:]:
        facts = frame_facts(frame, line)
        facts["source"] = source_around(facts["file"], line, frame.f_globals)
        if redact:
            facts["source"] = redact(facts["source"], "")
        facts["locals"] = _locals(frame.f_locals, redact) if keep_values else {}
        frames.append(facts)
    try:
        message = cut(str(error), 10_000)
    except Exception as failure:  # noqa: BLE001 - __str__ is the user's code
        message = f"<its __str__ raised {type(failure).__name__}>"
    return {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "message": redact(message, "") if redact else message,
        "notes": [str(note) for note in getattr(error, "__notes__", [])],
        "relation": relation,
        "frames": frames[::-1],
    }


def _locals(values: dict[str, Any], redact: Redact | None) -> dict[str, Any]:
    found = {}
    for name, value in list(values.items())[:_LOCALS]:
        facts = describe(value)
        if redact:
            # Secrets inside plain data are known by their keys, which a repr would lose: redact it, then describe it.
            shown = redact(_plain(value), name)
            facts["text"] = redact(describe(shown)["text"] if type(value) in _CONTAINERS else facts["text"], name)
        found[name] = facts
    return found


def _plain(value: Any, depth: int = 0) -> Any:
    """A bounded copy of nested data in which objects that are not plain are replaced by their description."""
    if type(value) is dict and depth < 5:
        return {str(key): _plain(item, depth + 1) for key, item in list(value.items())[:1000]}
    if type(value) in _CONTAINERS and depth < 5:
        return [_plain(item, depth + 1) for item in list(value)[:1000]]
    return value if type(value) in (str, int, float, bool, type(None)) else _Described(describe(value)["text"])


class _Described(str):
    """Text that represents an object and is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def source_around(file: str, line: int, module_globals: dict[str, Any] | None = None) -> dict[str, Any]:
    first = max(line - _AROUND, 1)
    lines = linecache.getlines(file, module_globals)[first - 1 : line + _AROUND]
    return {"first": first, "lines": [text.rstrip("\n") for text in lines]}


def _step(last: TracebackType | None) -> int | None:
    """The training step: the value of the innermost local variable with such a name."""
    for frame, _ in reversed(list(traceback.walk_tb(last))):
        for place in (frame.f_locals, getattr(frame.f_locals.get("self"), "__dict__", {})):
            for name in _STEP_NAMES:
                value = place.get(name)
                if type(value) is int:
                    return value
    return None
