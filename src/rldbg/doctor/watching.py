"""Follows live logs and reports once: when a root cause was found and no earlier one has appeared for a while."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rldbg.doctor.diagnosis import Diagnosis
from rldbg.doctor.jobs import job_facts
from rldbg.doctor.patterns import SearchIndex
from rldbg.doctor.pipeline import conclude
from rldbg.doctor.scan import LogReader, Scanner
from rldbg.doctor.sources import MARGIN_BYTES, Chunk, LogSource, find_sources, unreadable

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

    def advance(self, *, final: bool = False) -> bool:
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
        whole = len(fresh) if final else fresh.rfind(b"\n") + 1
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

    def finish(self) -> None:
        self._reader.finish()


def watch(
    paths: Sequence[str | Path],
    *,
    index: SearchIndex,
    has_ended: Callable[[], bool] = lambda: False,
    poll_s: float = _POLL_S,
    settle_s: float = _SETTLE_S,
) -> Diagnosis:
    """Blocks until a root cause has settled, or the job has ended; then the diagnosis of all that was read."""
    scanner = Scanner(index)
    logs: dict[str, FollowedLog] = {}
    last_news = time.monotonic()
    for _ in _ticks(poll_s):
        ended = has_ended()
        known = len(scanner.evidence.hits)
        while _advance_all(paths, scanner, logs, final=ended):
            last_news = time.monotonic() if len(scanner.evidence.hits) > known else last_news
            known = len(scanner.evidence.hits)
        diagnosis = conclude(scanner.evidence, index.library)
        settled = time.monotonic() - last_news >= settle_s
        if ended or (diagnosis.verdict == "found" and settled):
            break
    for log in logs.values():
        log.finish()
    return conclude(
        scanner.evidence,
        index.library,
        exit_code=job_facts(paths).exit_code,
        findings=scanner.evidence.findings,
        engine=index.engine_name,
    )


def _ticks(poll_s: float) -> Iterator[None]:
    while True:
        yield
        time.sleep(poll_s)


def _advance_all(paths: Sequence[str | Path], scanner: Scanner, logs: dict[str, FollowedLog], *, final: bool) -> bool:
    """One round over all logs, new ones included; whether any had grown."""
    existing = [path for path in paths if Path(path).exists()]
    for source in find_sources(existing, or_none=True).sources:
        if source.name not in logs:
            logs[source.name] = FollowedLog(scanner, source)
    grown = [log.advance(final=final) for log in logs.values()]
    return any(grown)
