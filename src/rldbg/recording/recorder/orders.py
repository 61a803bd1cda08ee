"""Orders to recorders while they record: RECORDING/.watch/orders.json, which `rldbg watch` replaces as a whole.

    {"pin": [steps], "stop_after": step or null, "reason": "..."}

A recorder looks for it at the end of each step: one call of `stat`, and a read when it has changed.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType

from rldbg import agent

WATCH_FOLDER = ".watch"
"""Below a recording: what the tripwire says about it. Layouts do not see it."""
_FILE = "orders.json"
_STOPPED = "_rldbg_stopped"


def give_orders(recording: Path, *, pin: Iterable[int], stop_after: int | None, reason: str) -> None:
    """Replaces the orders; recorders obey them when their current step ends."""
    folder = recording / WATCH_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{_FILE}.{os.getpid()}"
    orders = {"pin": sorted(set(pin)), "stop_after": stop_after, "reason": reason}
    temporary.write_text(json.dumps(orders), encoding="utf-8")
    temporary.replace(folder / _FILE)


class Orders:
    """What one recorder has been told."""

    def __init__(self, recording: Path, pin: Callable[[int], None]) -> None:
        self._path = str(recording / WATCH_FOLDER / _FILE)
        self._pin = pin
        self._stamp = (0, 0)
        self._stop_after: int | None = None
        self._reason = ""

    def obey(self, step: int) -> None:
        """At the end of a step: pins what is asked for, and stops this process if its last step has come."""
        try:
            facts = os.stat(self._path)  # noqa: PTH116 - once per step of every recorder
        except OSError:
            return
        if (facts.st_mtime_ns, facts.st_ino) != self._stamp:
            self._stamp = (facts.st_mtime_ns, facts.st_ino)
            self._read()
        if self._stop_after is not None and step >= self._stop_after and _is_first(self._path, self._stop_after):
            self._stop(step)

    def _read(self) -> None:
        with open(self._path, encoding="utf-8") as file:
            orders = json.load(file)
        for step in orders["pin"]:
            self._pin(step)
        self._stop_after, self._reason = orders["stop_after"], orders["reason"]

    def _stop(self, step: int) -> None:
        """In a run, as at a breakpoint: `rldbg attach` opens a prompt, `rldbg resume` lets it go on. Elsewhere the
        program ends, by an exception that hooks inside frameworks do not catch."""
        text = f"rldbg watch: stopped after step {step}: {self._reason}"
        running = agent.start()
        if running is None:
            raise SystemExit(text)
        agent.say(text)
        running.stop(_frame_of_user())


def _is_first(path: str, stop_after: int) -> bool:
    """A thread stops once, however many recorders it has for this recording."""
    stopped: set[tuple[str, int, int]] = getattr(sys, _STOPPED, set())
    place = (path, stop_after, threading.get_ident())
    is_first = place not in stopped
    setattr(sys, _STOPPED, stopped | {place})
    return is_first


def _frame_of_user() -> FrameType:
    """The innermost frame outside rldbg; the outermost of all where everything is ours."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] == "rldbg" and frame.f_back is not None:
        frame = frame.f_back
    return frame
