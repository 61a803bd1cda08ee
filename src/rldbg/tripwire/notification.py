"""The user's command that is called at each event."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable

from rldbg.core import Environment
from rldbg.tripwire.events import Event

_LONGEST_S = 60.0
_POLL_S = 0.05


class Notifier:
    """Calls the command and does not wait for it, so that one that hangs delays no check."""

    def __init__(self, command: str, note: Callable[[str], None], *, longest_s: float = _LONGEST_S) -> None:
        self._command = command
        self._note = note
        self._longest_s = longest_s
        self._running: list[tuple[subprocess.Popen[bytes], float]] = []

    def call(self, event: Event) -> None:
        if not self._command:
            return
        variables = {"RLDBG_EVENT": json.dumps(event.to_dict()), "RLDBG_MESSAGE": event.message}
        try:
            process = subprocess.Popen(
                self._command,
                shell=True,
                stdin=subprocess.DEVNULL,
                env=Environment().everything() | variables,
                start_new_session=True,
            )
        except OSError as error:
            self._note(f"the notification command failed: {error}")
            return
        self._running.append((process, time.monotonic() + self._longest_s))

    def look(self) -> None:
        """Notes what has failed since, and ends what takes too long."""
        for process, deadline in self._running.copy():
            if process.poll() is None and time.monotonic() < deadline:
                continue
            self._running.remove((process, deadline))
            if process.returncode is None:
                # With all that it has started.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self._note(f"the notification command took more than {self._longest_s:g} s: {self._command}")
            elif process.returncode:
                code = process.returncode
                self._note(f"the notification command failed with exit code {code}: {self._command}")

    def finish(self) -> None:
        """Waits for what is running."""
        while self._running:
            self.look()
            time.sleep(_POLL_S)
