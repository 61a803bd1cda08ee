"""The watcher as a process of its own, at the lowest priority: `rldbg watch RECORDING --follow`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from rldbg.agent import disarmed
from rldbg.core import Environment
from rldbg.recording import WATCH_FOLDER, forget_orders
from rldbg.tripwire.events import Event, EventLog
from rldbg.tripwire.settings import WatchSettings

_ENDED = "ended"
# The last look reads at most a few steps; on a busy machine that takes its time.
_LAST_LOOK_S = 120.0


class WatcherProcess:
    """Started and ended with a training. Events are appended to a file as lines."""

    def __init__(self, recording: Path, settings: WatchSettings, *, log: Path) -> None:
        self.recording = recording
        self._events = EventLog(recording)
        folder = recording / WATCH_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _ENDED).unlink(missing_ok=True)
        forget_orders(recording)
        (folder / "events.jsonl").unlink(missing_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command_of(recording, settings, os.getpid()),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=disarmed(Environment().everything()),
                start_new_session=True,
            )

    def new_events(self) -> list[Event]:
        """The events since the last call."""
        return self._events.new()

    def close(self) -> list[Event]:
        """Lets it judge what is left, and waits for that; the events since the last call."""
        (self.recording / WATCH_FOLDER / _ENDED).touch()
        try:
            self._process.wait(_LAST_LOOK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        return self.new_events()


def command_of(recording: Path, settings: WatchSettings, owner: int) -> list[str]:
    words = [sys.executable, "-m", "rldbg", "watch", str(recording), "--follow", "--owner", str(owner)]
    words += ["--stop" if settings.stop else "--note", "--around", str(settings.around)]
    words += [word for text in settings.when for word in ("--when", text)]
    words += ["--notify", settings.notify] if settings.notify else []
    words += ["--rules", settings.rules] if settings.rules else []
    return [*words, *([] if settings.checks else ["--no-checks"])]


def has_ended(recording: Path, owner: int | None) -> bool:
    """Whether the process that started the watcher has ended, or reports that the recording has ended."""
    if (recording / WATCH_FOLDER / _ENDED).exists():
        return True
    if owner is None:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(owner, 0)
        return False
    return True
