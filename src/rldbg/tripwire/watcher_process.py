"""The watcher as a process of its own, at the lowest priority: `rldbg watch RECORDING --follow`."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

from rldbg.agent import disarmed
from rldbg.core import Environment, ExitCode, RldbgError, Run
from rldbg.recording import WATCH_FOLDER, forget_orders
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
        (self.recording / WATCH_FOLDER / _ENDED).touch()
        try:
            self._process.wait(_LAST_LOOK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def command_of(recording: Path, settings: WatchSettings, owner: int) -> list[str]:
    words = [sys.executable, "-m", "rldbg", "watch", str(recording), "--follow", "--owner", str(owner)]
    words += ["--stop" if settings.stop else "--note", "--around", str(settings.around)]
    words += [word for text in settings.when for word in ("--when", text)]
    words += ["--notify", settings.notify] if settings.notify else []
    words += ["--rules", settings.rules] if settings.rules else []
    return [*words, *([] if settings.checks else ["--no-checks"])]


def has_ended(recording: Path, owner: int | None) -> bool:
    """Whether the process that started the watcher has ended, or reports that the recording has ended. Without one, the
    recording's run tells."""
    if (recording / WATCH_FOLDER / _ENDED).exists():
        return True
    if owner is None:
        return any(map(_run_ended, (recording, recording.parent)))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(owner, 0)
        return False
    return True


def _run_ended(folder: Path) -> bool:
    """Whether run.json says that the run has ended; False if it is incomplete or of another program."""
    try:
        return Run(folder).read().get("ended_at") is not None
    except (RldbgError, OSError):
        return False
