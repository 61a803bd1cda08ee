"""The watcher as a process of its own, at the lowest priority: `rldbg watch RECORDING --follow`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from rldbg.agent import disarmed
from rldbg.core import Environment, ExitCode, is_running
from rldbg.recording import WATCH_FOLDER, RunLife, forget_orders
from rldbg.tripwire.events import EVENTS_FILE, NOTES_FILE, Event, EventLog
from rldbg.tripwire.settings import WatchSettings

_ENDED = "ended"
# The last look reads at most a few steps; on a busy machine that takes its time.
_LAST_LOOK_S = 120.0
# Without a recorded step there is nothing to check.
_WELL = (ExitCode.OK, ExitCode.FINDING, ExitCode.INCOMPLETE)


class WatcherProcess:
    """Started and ended with a training. Events are appended to a file as lines."""

    def __init__(self, recording: Path, settings: WatchSettings, *, log: Path) -> None:
        self.recording = recording
        self._events = EventLog(recording)
        folder = recording / WATCH_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _ENDED).unlink(missing_ok=True)
        forget_orders(recording)
        for name in (EVENTS_FILE, NOTES_FILE):
            (folder / name).unlink(missing_ok=True)
        self._log = log
        self._is_closing = self._has_noted_end = False
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

    def new_notes(self) -> list[str]:
        """What it, or its end, has to say since the last call."""
        code, ended = self._process.poll(), []
        if code is not None and not self._has_noted_end and (not self._is_closing or code not in _WELL):
            self._has_noted_end = True
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            again = f"rldbg watch {shlex.quote(str(self.recording))}{'' if self._is_closing else ' --follow'}"
            ended.append(
                f"the process that checks steps has ended ({how}): later steps are not checked; its output is in "
                f"{self._log}; check them: {again}"
            )
        return [*self._events.new_notes(), *ended]

    def close(self) -> None:
        """Lets it judge what is left, and waits for that."""
        self._is_closing = self._process.poll() is None
        try:
            (self.recording / WATCH_FOLDER / _ENDED).touch()
        except OSError:  # full disk, or the folder is gone: it cannot be told to end
            self._process.terminate()
        try:
            self._process.wait(_LAST_LOOK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def command_of(recording: Path, settings: WatchSettings, owner: int) -> list[str]:
    words = [sys.executable, "-m", "rldbg", "watch", str(recording), "--follow", "--owner", str(owner)]
    words += ["--stop" if settings.stop else "--note", "--around", str(settings.around)]
    words += ["--keep-events", str(settings.keep_events)]
    words += [word for text in settings.when for word in ("--when", text)]
    words += ["--notify", settings.notify] if settings.notify else []
    words += ["--rules", settings.rules] if settings.rules else []
    return [*words, *([] if settings.checks else ["--no-checks"])]


class WatchedRun:
    """The end of what is watched: of the process that started the watcher, or of the run where a user did."""

    def __init__(self, recording: Path, owner: int | None) -> None:
        self._end = recording / WATCH_FOLDER / _ENDED
        self._owner = owner
        self._started_s = time.time()
        self._life = RunLife(recording)

    @property
    def has_ended(self) -> bool:
        if self._end.exists():
            return True
        return self._life.has_ended if self._owner is None else not is_running(self._owner, self._started_s)

    def new_note(self) -> str:
        """What there is to say about its end, once; else empty."""
        return self._life.new_note()
