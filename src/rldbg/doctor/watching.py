"""Follows live logs and reports once: when a root cause was found and no earlier one has appeared for a while."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rldbg.doctor.answer.diagnosis import Diagnosis
from rldbg.doctor.knowledge.patterns import SearchIndex
from rldbg.doctor.logs.sources import MARGIN_BYTES, Chunk, LogSource, find_sources, unreadable
from rldbg.doctor.pipeline import conclude, diagnose
from rldbg.doctor.scan import LogReader, Scanner

_POLL_S = 0.5
_SETTLE_S = 3.0
_MAX_STEP = 8 << 20


class FollowedLog:
    """One growing log: what was read stays read, and only whole lines are looked at."""

    def __init__(self, scanner: Scanner, source: LogSource) -> None:
        self.source = source
        self._reader = LogReader(scanner, source)
        self._scanner = scanner
        self._carried, self._offset, self._begin, self._first_line = b"", 0, 0, 1
        self._failed = False

    def advance(self) -> bool:
        """Reads what was appended; whether there was anything."""
        if self._failed or self.source.path is None:
            return False
        position = self._offset + len(self._carried)
        try:
            if self.source.size < position:
                self._restart()
                position = 0
            with self.source.open() as stream:
                stream.seek(position)
                fresh = stream.read(_MAX_STEP)
        except OSError as error:
            self._scanner.evidence.findings.append(unreadable(self.source.name, error))
            self._failed = True
            return False
        whole = fresh.rfind(b"\n") + 1
        if not whole:
            return False
        self._take(fresh[:whole])
        return True

    def _restart(self) -> None:
        """The file was replaced or cut: it is read from its beginning."""
        self._carried, self._offset, self._begin, self._first_line = b"", 0, 0, 1

    def _take(self, fresh: bytes) -> None:
        data = self._carried + fresh
        chunk = Chunk(data, self._offset, self._begin, len(data), self._first_line, is_last=True)
        self._reader.take(chunk)
        keep = max(0, len(data) - MARGIN_BYTES)
        self._first_line += data.count(b"\n", 0, keep)
        self._carried, self._offset, self._begin = data[keep:], self._offset + keep, len(data) - keep


def watch(
    paths: Sequence[str | Path],
    *,
    index: SearchIndex,
    has_ended: Callable[[], bool] = lambda: False,
    poll_s: float = _POLL_S,
    settle_s: float = _SETTLE_S,
) -> Diagnosis:
    """Blocks until a root cause has settled, or the job has ended; then the diagnosis of all that the logs hold."""
    scanner = Scanner(index)
    logs: dict[str, FollowedLog] = {}
    last_news, asked = time.monotonic(), False
    for _ in _ticks(poll_s):
        if has_ended():
            break
        known = len(scanner.evidence.hits)
        while _advance_all(paths, scanner, logs):
            if len(scanner.evidence.hits) > known:
                last_news, asked = time.monotonic(), False
            known = len(scanner.evidence.hits)
        if asked or time.monotonic() - last_news < settle_s:
            continue
        if (asked := conclude(scanner.evidence, index.library).verdict != "healthy") and (
            (found := _diagnosis(paths, index)).verdict == "found"
        ):
            return found
    return _diagnosis(paths, index)


def _diagnosis(paths: Sequence[str | Path], index: SearchIndex) -> Diagnosis:
    """Read from the beginning: some causes are several lines, or stand in dumps and stacks."""
    return diagnose(_existing(paths) or paths, index=index)


def _ticks(poll_s: float) -> Iterator[None]:
    while True:
        yield
        time.sleep(poll_s)


def _advance_all(paths: Sequence[str | Path], scanner: Scanner, logs: dict[str, FollowedLog]) -> bool:
    """One round over all logs, new ones included; whether any had grown."""
    for source in find_sources(_existing(paths), or_none=True).sources:
        if source.name not in logs:
            logs[source.name] = FollowedLog(scanner, source)
    grown = [log.advance() for log in logs.values()]
    return any(grown)


def _existing(paths: Sequence[str | Path]) -> list[str | Path]:
    return [path for path in paths if Path(path).exists()]
