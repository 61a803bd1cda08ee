"""The command's output on its way to the terminal, with a copy in RUN/logs/output.log for the doctor.

Where our output is a terminal the command's is one too (colours, progress bars and pdb stay as they are); input is not
touched. See `rldbg.launch.tee` for the process in between.
"""

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

LOG = "output.log"
_SETTLE_S = 5.0


@dataclass
class CapturedOutput:
    """What to give a command as its standard output and error, until `settle` has been called."""

    log: Path
    stdout: int
    stderr: int
    _asked: int
    _settled: int
    _process: "subprocess.Popen[bytes]"

    @classmethod
    def open(cls, log: Path, *, redact: bool, stdout_to_stderr: bool = False) -> "CapturedOutput":
        targets = (2, 2) if stdout_to_stderr else (1, 2)
        first_in, first_out = _channel(targets[0])
        second_in, second_out = (first_in, first_out) if _is_same(*targets) else _channel(targets[1])
        asked_in, asked_out = os.pipe()
        settled_in, settled_out = os.pipe()
        pairs = {first_in: targets[0], second_in: targets[1]}
        if first_in == second_in:
            pairs = {first_in: targets[0]}
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "rldbg.launch.tee", str(log), str(int(redact))),
                *(str(asked_in), str(settled_out)),
                *(f"{source}:{target}" for source, target in pairs.items()),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(*pairs, asked_in, settled_out),
        )
        for descriptor in {*pairs, asked_in, settled_out}:
            os.close(descriptor)
        return cls(log, first_out, second_out, asked_out, settled_in, process)

    def settle(self) -> None:
        """After the command's end: waits until all it wrote has been passed on and is in the log."""
        for descriptor in {self.stdout, self.stderr, self._asked}:
            os.close(descriptor)
        select.select([self._settled], [], [], _SETTLE_S)
        os.close(self._settled)
        # It outlives this process if the command left background processes that still write; it is not waited for then.
        self._process.returncode = self._process.poll() or 0


def _is_same(one: int, other: int) -> bool:
    """Whether two descriptors lead to the same place, so that the order of what is written must be kept."""
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino, first.st_rdev) == (second.st_dev, second.st_ino, second.st_rdev)


def _channel(target: int) -> tuple[int, int]:
    """Two ends, to read from and to write to: a terminal where the target is one, else a pipe."""
    if not os.isatty(target):
        return os.pipe()
    ours, theirs = pty.openpty()
    mode = termios.tcgetattr(theirs)
    # What is written passes through unchanged: the real terminal does what a terminal does with it.
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    # Before the command starts: it may ask for the size at once. The copying process follows later changes.
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(target, termios.TIOCGWINSZ, bytes(8)))
    return ours, theirs
