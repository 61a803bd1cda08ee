"""What a thread waits for in the kernel: its system call and the file behind it."""

import ast

from ..code.origins import FUNCTIONS
from ..code.places import is_users
from ..code.resolving import resolve
from ..code.ways_out import lasts_by_clock
from ..processes.kernel_threads import POLLING
from ..reading.objects import Frame, is_a
from .lock_files import awaited_absence
from .looking import Looking, Wait

# Of a function that only sleeps: how many statements it has, a text above it included, and how many call each other.
_MOST_STATEMENTS, _MOST_HELPERS = 3, 3
_ROUNDS = (ast.For, ast.AsyncFor, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BODIES = (*FUNCTIONS, *_ROUNDS, ast.While)
_COMPREHENSIONS = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
_STATEMENTS = frozenset({"execute", "executemany", "executescript", "commit"})


def _uses_database(looking: Looking) -> bool:
    """Whether the innermost line calls SQLite, which sleeps and tries again while its file is locked."""
    if not looking.frames:
        return False
    innermost = looking.frames[0]
    calls = looking.sources.calls_at(innermost)
    used = (resolve(call.receiver, innermost) for call in calls if call.method in _STATEMENTS)
    return any(is_a(value, "Connection", "Cursor") for value in used)


def _delay(looking: Looking) -> float | None:
    """The seconds that the user's `sleep` was given, where they are plain."""
    place = looking.place
    calls = [call for call in looking.sources.calls_at(place) if call.method == "sleep"] if place is not None else []
    if place is None or len(calls) != 1 or len(calls[0].arguments) != 1:
        return None
    seconds = calls[0].arguments[0]
    if isinstance(seconds, ast.Constant):
        return float(seconds.value) if isinstance(seconds.value, int | float) else None
    value = resolve(seconds, place)
    return value.real() if value is not None else None


def _calls_for_sleep(looking: Looking) -> Frame | None:
    """The function that sleeps, or who has called one that does little else, as in `while not done(): back_off()`."""
    own = [frame for frame in looking.frames[looking.user or 0 :] if is_users(frame.file)]
    for frame in own[:_MOST_HELPERS]:
        function = looking.sources.function(frame)
        helps = isinstance(function, FUNCTIONS) and len(function.body) <= _MOST_STATEMENTS
        if looking.sources.loops_around(frame) or not helps:
            return frame
    return looking.place


def _is_counted(looking: Looking) -> bool:
    """Whether the innermost loop that the sleep is in, maybe in a function that called this one, comes to its end."""
    for frame in (each for each in looking.frames[looking.user or 0 :] if is_users(each.file)):
        name = frame.function.rpartition(".")[2]
        within = [
            node for node in looking.sources.on_line(frame) if isinstance(node, (*FUNCTIONS, *_ROUNDS, ast.While))
        ]
        innermost = within[-1] if within else None
        if name in _COMPREHENSIONS or isinstance(innermost, _ROUNDS):
            return True
        if isinstance(innermost, ast.While):
            return lasts_by_clock(innermost)
    return False


def kernel_wait(looking: Looking) -> Wait | None:
    facts, place = looking.kernel, looking.place
    call, file = str(facts.get("call") or ""), facts.get("file") or {}
    methods = {each.method for each in looking.sources.calls_at(place)} if place is not None else set()
    # A worker that polls by now was in the user's `sleep` when its frames were read.
    if call in ("nanosleep", "clock_nanosleep") or (call in ("", *POLLING) and "sleep" in methods):
        place = _calls_for_sleep(looking)
        polls = looking.sources.polled(place) if place is not None else ""
        wait = {"kind": "sleep", "polls": polls, "inside": "sleep" not in methods, "database": _uses_database(looking)}
        absence = awaited_absence(place, looking.sources) if place is not None else ""
        given_s = _delay(looking)
        wait["counted"] = _is_counted(looking)
        if place is not looking.place:
            wait["named_in"] = place
        return wait | {"delay_s": facts.get("left_s") if given_s is None else given_s, "absence_of": absence}
    if call in ("wait4", "waitid"):
        pid = (facts.get("arguments") or [0])[1 if call == "waitid" else 0]
        return {"kind": "child", "pid": pid if 0 < pid < 1 << 31 else None}
    if call in ("flock", "fcntl"):
        return {"kind": "file_lock", "path": file.get("path", "")}
    if call in POLLING and facts.get("polled") == 0:
        # Without descriptors it is a sleep, or on some machines pause().
        endless = call == "ppoll" and not (facts.get("arguments") or [0, 0, 0])[2]
        return {"kind": "signal"} if endless else {"kind": "sleep", "polls": "", "inside": False}
    if call in ("pause", "rt_sigtimedwait"):
        return {"kind": "signal"}
    if file.get("descriptor") == 0 and call == "read":
        return {"kind": "stdin", "call": call, "file": file}
    if file.get("kind") == "socket":
        return {"kind": "socket", "call": call, "file": file}
    if file.get("kind") == "pipe":
        return {"kind": "pipe", "call": call, "file": file}
    if call in POLLING and (file.get("kind") == "events" or facts.get("polled", 1) > 1):
        return {"kind": "poll", "count": facts["polled"], "files": facts["files"]}
    if facts.get("state") == "disk":
        return {"kind": "disk", "file": file, "channel": facts.get("channel", "")}
    if call == "openat" and facts.get("state") == "sleeping":
        return {"kind": "fifo", "path": facts.get("path", "")}
    if file.get("kind") == "terminal" and call == "read":
        return {"kind": "stdin", "file": file}
    if methods & {"synchronize", "item", "cpu", "tolist"} and call == "futex":
        return {"kind": "native", "methods": sorted(methods)}
    if facts.get("state") == "running":
        return {"kind": "computing", "polls": looking.sources.spins(place) if place is not None else ""}
    return None
