"""Orders to recorders while they record: RECORDING/.watch/orders.json, which `rldbg watch` replaces as a whole.

    {"stop": name or null, "reason": "..."}

A recorder looks for it at the end of each step: one call of `stat`, and a read when it has changed. The first recorder
that sees a new `stop`, at the end of step N, writes N + 1 into RECORDING/.watch/stop-NAME, and all ranks stop at the
end of that step. Ranks wait for each other in collectives, so none of them has ended it before.
"""

import json
import os
import sys
import threading
from pathlib import Path
from types import FrameType

from rldbg import agent
from rldbg.recording.recorder.checked_steps import WATCH_FOLDER, forget_checks

_FILE = "orders.json"
_STOP = "stop-"
_STOPPED = "_rldbg_stopped"


def give_orders(recording: Path, *, stop: str | None, reason: str) -> None:
    """Replaces the orders; recorders obey them when their current step ends. Ranks stop once per name."""
    folder = recording / WATCH_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{_FILE}.{os.getpid()}"
    temporary.write_text(json.dumps({"stop": stop, "reason": reason}), encoding="utf-8")
    temporary.replace(folder / _FILE)


def stop_step(recording: Path | str, stop: str) -> int | None:
    """The step at whose end ranks stop, once one of them has seen the order."""
    try:
        with open(os.path.join(recording, WATCH_FOLDER, _STOP + stop), encoding="utf-8") as file:  # noqa: PTH118
            text = file.read()
    except FileNotFoundError:
        return None
    return int(text) if text else None


def forget_orders(recording: Path) -> None:
    """Ignores orders left by an earlier run."""
    folder = recording / WATCH_FOLDER
    for file in [*folder.glob(f"{_STOP}*"), folder / _FILE]:
        file.unlink(missing_ok=True)
    forget_checks(recording)


class Orders:
    """What one recorder has been told."""

    def __init__(self, recording: Path) -> None:
        self._recording = str(recording)
        self._path = str(recording / WATCH_FOLDER / _FILE)
        self._stamp = (0, 0)
        self._stop: str | None = None
        self._last: int | None = None
        self._reason = ""

    def obey(self, step: int) -> None:
        """At the end of a step: stops this process if its last step has come."""
        try:
            facts = os.stat(self._path)  # noqa: PTH116 - once per step of every recorder
        except OSError:
            return
        if (facts.st_mtime_ns, facts.st_ino) != self._stamp:
            self._stamp = (facts.st_mtime_ns, facts.st_ino)
            self._read()
        if self._stop is None:
            return
        if self._last is None:
            self._last = self._agreed(self._stop, step)
        if self._last is not None and step >= self._last and _is_first(self._path, self._stop):
            self._stop_here(step)

    def _agreed(self, stop: str, step: int) -> int | None:
        """The step that the first to meet the order has chosen; None while that one writes it."""
        try:
            with open(f"{self._path.removesuffix(_FILE)}{_STOP}{stop}", "x", encoding="utf-8") as file:
                file.write(str(step + 1))
        except FileExistsError:
            return stop_step(self._recording, stop)
        return step + 1

    def _read(self) -> None:
        with open(self._path, encoding="utf-8") as file:
            orders = json.load(file)
        self._reason = orders["reason"]
        if orders["stop"] != self._stop:
            self._stop, self._last = orders["stop"], None

    def _stop_here(self, step: int) -> None:
        """In a run, as at a breakpoint: `rldbg attach` opens a prompt, `rldbg continue` resumes it. Elsewhere the
        program ends, by an exception that hooks inside frameworks do not catch."""
        text = f"watch: stopped after step {step}: {self._reason}"
        running = agent.start()
        if running is None:
            raise SystemExit(f"rldbg {text}")
        agent.say(text)
        running.stop(_frame_of_user())


def _is_first(path: str, stop: str) -> bool:
    """A thread stops once per order, however many recorders it has for this recording."""
    stopped: set[tuple[str, str, int]] = getattr(sys, _STOPPED, set())
    place = (path, stop, threading.get_ident())
    is_first = place not in stopped
    setattr(sys, _STOPPED, stopped | {place})
    return is_first


def _frame_of_user() -> FrameType:
    """The innermost frame outside rldbg; the outermost of all where everything is ours."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] == "rldbg" and frame.f_back is not None:
        frame = frame.f_back
    return frame
