"""The process between an armed command and the terminal: passes its output on as it comes and keeps a copy in the run.

It is a separate process because a command may leave background processes that keep writing: it lives until the last of
them has closed its output, so that none gets a broken pipe. Only the log is redacted. Errors never stop the command: if
the log cannot be written, output is still passed on.

    python -m rldbg.launch.tee LOG REDACT ASKED SETTLED IN:OUT [IN:OUT]      numbers are inherited descriptors
"""

import fcntl
import os
import re
import select
import signal
import sys
import termios
from collections.abc import Callable
from pathlib import Path

from rldbg.core import redact_text

_PIECE_BYTES = 1 << 16
_LINE_END = re.compile(rb"[\r\n]")
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


class RedactedLog:
    """A log file that gets whole lines only, so that a secret is seen whole before it would be written."""

    def __init__(self, path: Path, *, redact: bool) -> None:
        self._redact: Callable[[str], str] = redact_text if redact else str
        self._waiting = b""
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            self._file = None

    def write(self, fresh: bytes) -> None:
        data = self._waiting + fresh
        ends = [match.end() for match in _LINE_END.finditer(data, len(self._waiting))]
        whole = ends[-1] if ends else 0
        if len(data) - whole > _PIECE_BYTES:
            whole = len(data)
        self._waiting = data[whole:]
        self._append(data[:whole])

    def flush(self) -> None:
        self._append(self._waiting)
        self._waiting = b""

    def _append(self, data: bytes) -> None:
        if self._file is None or not data:
            return
        text = self._redact(data.decode("utf-8", "surrogateescape"))
        try:
            _write_all(self._file, text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            _write_all(2, f"rldbg: writing the output log failed, it ends here: {error.strerror}\n".encode())
            self._file = None


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            # Another process that shares this output made it non-blocking.
            select.select([], [descriptor], [])


def pass_on(streams: dict[int, int], log: RedactedLog, asked: int, settled: int) -> None:
    """Passes output on until all inputs have ended. When `asked` is closed, `settled` is closed once everything so far
    was passed on."""
    waiting = select.poll()
    for descriptor in (*streams, asked):
        waiting.register(descriptor, select.POLLIN)
    is_asked = False
    while streams:
        ready = [descriptor for descriptor, _ in waiting.poll(0 if is_asked and settled >= 0 else None)]
        if asked in ready:
            waiting.unregister(asked)
            is_asked = True
        for source in [descriptor for descriptor in ready if descriptor in streams]:
            if not _move(source, streams[source], log):
                waiting.unregister(source)
                os.close(source)
                del streams[source]
        if is_asked and settled >= 0 and not ready:
            log.flush()
            os.close(settled)
            settled = -1
    log.flush()


def _move(source: int, target: int, log: RedactedLog) -> bool:
    """One piece of output; False at the end of the output, or when nothing reads it any more."""
    try:
        fresh = os.read(source, _PIECE_BYTES)
    except OSError:
        # A terminal's other side reads as an error once its last user has closed it.
        return False
    if not fresh:
        return False
    log.write(fresh)
    try:
        _write_all(target, fresh)
    except BrokenPipeError:
        return False
    except OSError:
        # The terminal was closed or its disk is full: the copy in the run folder is all the more needed.
        return True
    return True


def _follow_size(streams: dict[int, int]) -> None:
    """Gives the command's terminal the size of the real one, now and whenever that changes."""

    def copy_size(*_signal: object) -> None:
        for source, target in streams.items():
            if os.isatty(source) and os.isatty(target):
                size = fcntl.ioctl(target, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(source, termios.TIOCSWINSZ, size)

    signal.signal(signal.SIGWINCH, copy_size)
    copy_size()


def main(words: list[str]) -> None:
    log, redact, asked, settled, *pairs = words
    for ignored in _IGNORED:
        signal.signal(ignored, signal.SIG_IGN)
    # Scripts with `pkill python` look at this name.
    Path("/proc/self/comm").write_text("rldbg-tee")
    streams = {int(source): int(target) for source, _, target in (pair.partition(":") for pair in pairs)}
    _follow_size(streams)
    pass_on(streams, RedactedLog(Path(log), redact=redact == "1"), int(asked), int(settled))


if __name__ == "__main__":
    main(sys.argv[1:])
