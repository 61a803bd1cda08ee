"""A program on a pseudo-terminal."""

import fcntl
import os
import pty
import re
import select
import subprocess
import termios
import time

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07")


class Terminal:
    """What the program shows, read until some text appears; and a keyboard."""

    def __init__(self, command, environment, folder):
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm", "NO_COLOR": "1", "PROMPT_TOOLKIT_NO_CPR": "1"},
            cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.text = ""

    def expect(self, words, timeout_s=90.0):
        """What was shown before these words."""
        deadline = time.monotonic() + timeout_s
        while words not in self.text:
            ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{words!r} did not appear in: {self.text[-1500:]}"
            try:
                data = os.read(self._master, 65536)
            except OSError:
                data = b""
            assert data, f"it ended before {words!r}: {self.text[-1500:]}"
            self.text += _ESCAPES.sub("", data.decode("utf-8", "replace"))
        before, _, self.text = self.text.partition(words)
        return before

    def type(self, line):
        os.write(self._master, line.encode() + b"\r")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
