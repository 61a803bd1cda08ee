"""One pass over all logs: anchors are found in raw bytes, and only around them is anything read as text.

Memory stays flat: of each signature some lines of each log are kept, the others counted. Time stays bounded: in a log
flooded with one message only the first places of each megabyte are tried, and a signature whose expression is slow has
a budget in each log, beyond which it is skipped and named in a finding.
"""

import time
import zlib
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rldbg.doctor.knowledge.patterns import CluePattern, CrashPattern, SearchIndex, SignaturePattern, too_slow
from rldbg.doctor.knowledge.signatures import Match, match_at
from rldbg.doctor.logs.clock import stated_wait_s
from rldbg.doctor.logs.evidence import Failure, Hit, LogEnd, LogEvidence, RunStart, excerpt, is_of_worker
from rldbg.doctor.logs.failures import failure_at, skeleton
from rldbg.doctor.logs.going_on import note_going_on
from rldbg.doctor.logs.log_places import LogPlaces
from rldbg.doctor.logs.log_tail import LogTail
from rldbg.doctor.logs.newest_first import TurnedLog, finding_of
from rldbg.doctor.logs.progress import LogProgress, add_endings, counts_in, served_in, shut_down_in
from rldbg.doctor.logs.run_starts import RunStarts
from rldbg.doctor.logs.sources import MARGIN_BYTES, Chunk, LogSource, chunks, unreadable
from rldbg.doctor.logs.survival import is_uncaught
from rldbg.doctor.logs.window import FOLDED_UP_TO_BYTES, LogWindow, straddling

KEPT_PER_SIGNATURE = 64
BUDGET_S = 5.0
_TRIES_PER_CHUNK = 100
_TRIES_IN_FLOOD = 10
_FLOOD = 5000
_SLOW_S = 0.005
_CRASHES_PER_CHUNK = 40
_KEPT_FAILURES = 200
_SAMPLE_BYTES = 8192
_SERVED_LINES = 64
_LONGEST_ANCHOR_BYTES = 256
"""An anchor that begins in a chunk may end this far in its margin."""
_WHOLE_BYTES = 1 << 18
Progress = Callable[[int], None]
OnHit = Callable[[Hit], None]


class Scanner:
    """Reads logs one after another into one body of evidence."""

    def __init__(
        self,
        index: SearchIndex,
        *,
        on_bytes: Progress | None = None,
        on_hit: OnHit | None = None,
        budget_s: float = BUDGET_S,
    ) -> None:
        self.index = index
        self.on_bytes = on_bytes or (lambda _count: None)
        self.on_hit = on_hit or (lambda _hit: None)
        self.budget_s = budget_s
        self.evidence = LogEvidence()
        self.year = 0
        """The year that one of these logs states; logs without a year are of the same year."""

    def read_all(self, sources: Sequence[LogSource]) -> LogEvidence:
        self.year = next((year for source in sources if (year := source.stated_year)), 0)
        for source in sources:
            self.read(source)
        return self.evidence

    def read(self, source: LogSource) -> None:
        """One log. What is wrong with it becomes a finding; what could be read before that counts."""
        reader = LogReader(self, source)
        try:
            with source.open() as stream:
                if isinstance(stream, TurnedLog):
                    self.evidence.findings.append(finding_of(source.name))
                for chunk in chunks(stream):
                    reader.take(chunk)
                    self.on_bytes(chunk.end - chunk.begin)
        except (OSError, EOFError, zlib.error) as error:
            self.evidence.findings.append(unreadable(source.name, error))
        reader.finish()


class LogReader:
    """The state of reading one log: matches kept, time spent, position of the last line."""

    def __init__(self, scanner: Scanner, source: LogSource) -> None:
        self._scanner = scanner
        self._source = source
        self._evidence = scanner.evidence
        self._kept: Counter[int] = Counter()
        self._spent_s: dict[int, float] = {}
        self._tries: Counter[int] = Counter()
        self._tries_here: Counter[int] = Counter()
        self._flooded: Counter[str] = Counter()
        self._latest: dict[int, deque[Hit]] = {}
        self._last_skipped: dict[int, tuple[SignaturePattern, int]] = {}
        self._last_step: dict[int, Hit] = {}
        """Of signatures with more lines than are kept the last one that counts a step: no step after it is without."""
        self._seen_lines: set[tuple[str, str, int]] = set()
        self._failures: dict[str, Failure] = {}
        self._tail: Chunk | None = None
        self._bytes = 0
        self._size = 0
        self._places = LogPlaces(source)
        self._run_starts = RunStarts(self._places)
        self._starts: list[RunStart] = self._evidence.starts.setdefault(source.name, [])
        self._evidence.files.append(source.name)

    def take(self, chunk: Chunk) -> None:
        if self._tail is None:
            stated = self._places.begin(chunk.data, self._scanner.year)
            self._scanner.year = self._scanner.year or stated
            self._size = self._source.size
        self._tail = chunk
        self._bytes = chunk.offset + len(chunk.data)
        self._tries_here.clear()
        if max(self._size, chunk.offset + len(chunk.data)) <= FOLDED_UP_TO_BYTES:
            self._starts += sorted(self._run_starts.within(chunk))
        found = self._find(chunk)
        own = [item for item in found if chunk.begin <= item[0] < chunk.end]
        self._try_all(chunk, own)
        kept_from = chunk.offset + chunk.end - MARGIN_BYTES
        self._seen_lines = {line for line in self._seen_lines if line[2] >= kept_from}
        self._sample_progress(chunk)

    def _find(self, chunk: Chunk) -> list[tuple[int, int]]:
        """The anchors in a chunk; in a small log also those that a line break cuts in two."""
        index = self._scanner.index
        size = max(self._size, chunk.offset + len(chunk.data))
        if size > FOLDED_UP_TO_BYTES:
            return index.engine.find(chunk.data, chunk.begin, chunk.end + _LONGEST_ANCHOR_BYTES)
        return sorted(index.folded_engine.find(chunk.data) + straddling(chunk, index.folded_engine))

    def _try_all(self, chunk: Chunk, found: Sequence[tuple[int, int]]) -> None:
        """Tries what each anchor may stand for; where only the latest places matter, the last ones of the chunk."""
        crashes = 0
        latest: dict[SignaturePattern, deque[int]] = {}
        for number, (at, anchor) in enumerate(found):
            for pattern in self._scanner.index.patterns[anchor]:
                if isinstance(pattern, SignaturePattern):
                    if pattern.signature.last_before:
                        latest.setdefault(pattern, deque(maxlen=_TRIES_IN_FLOOD)).append(at)
                    else:
                        self._try_signature(pattern, chunk, at)
                elif isinstance(pattern, CluePattern):
                    self._try_clue(pattern, chunk, at)
                else:
                    crashes += 1
                    if crashes <= _CRASHES_PER_CHUNK or len(found) - number <= _CRASHES_PER_CHUNK:
                        self._try_crash(pattern, chunk, at)
        for pattern, places in latest.items():
            for at in places:
                self._try_signature(pattern, chunk, at)
        for pattern, at in self._last_skipped.values():
            self._flooded[pattern.entry.id] -= 1
            self._try_place(pattern, chunk, at)
        self._last_skipped.clear()

    def finish(self) -> None:
        for name, count in self._flooded.items():
            if name in self._evidence.counts:
                self._evidence.counts[name] += count
        self._evidence.hits += self._last_step.values()
        for failure in self._failures.values():
            known = tuple(self._scanner.index.known(failure.headline))
            self._evidence.failures.append(replace(failure, known_as=known))
        tail = LogTail(self._tail, self._places)
        outlived = max(((each.last or each.place).line + each.lines for each in self._failures.values()), default=0)
        self._note_ending(tail, outlived)
        self._evidence.ends.append(
            LogEnd(self._source.name, self._source.speaker, tail.last_stamp, tail.lines, self._bytes, tail.closing_line)
        )

    def _note_ending(self, tail: LogTail, since: int) -> None:
        """How a log ends that has no exception from a line on."""
        if bar := tail.unfinished():
            self._evidence.unfinished[self._source.name] = bar
        self._evidence.waiting += tail.waiting(self._source.name)
        has_hits = any(hit.place.file == self._source.name for hit in self._evidence.hits)
        if not has_hits and (cut := tail.cut_off()):
            self._evidence.failures.append(cut)
            self._keep_shown(cut)
        else:
            self._evidence.endings += tail.endings(since)

    def _try_signature(self, pattern: SignaturePattern, chunk: Chunk, at: int) -> None:
        if pattern.signature.of_driver and is_of_worker(self._source.name):
            return
        key = id(pattern)
        limit = _TRIES_IN_FLOOD if self._tries[key] > _FLOOD else _TRIES_PER_CHUNK
        is_slow = self._spent_s.get(key, 0.0) > self._scanner.budget_s
        if self._tries_here[key] >= limit or is_slow:
            self._flooded[pattern.entry.id] += 1
            if not is_slow:
                self._last_skipped[key] = pattern, at
            return
        self._try_place(pattern, chunk, at)

    def _try_place(self, pattern: SignaturePattern, chunk: Chunk, at: int) -> None:
        window = LogWindow(chunk, at)
        line = (pattern.entry.id, pattern.signature.last_before or "", window.offset)
        if line in self._seen_lines:
            return
        began = time.perf_counter()
        match = match_at(pattern, window)
        self._spend(pattern, time.perf_counter() - began)
        if match is not None:
            self._seen_lines.add(line)
            self._keep(pattern, window, match)

    def _spend(self, pattern: SignaturePattern, seconds: float) -> None:
        key = id(pattern)
        self._tries[key] += 1
        self._tries_here[key] += 1
        if seconds < _SLOW_S:
            return
        before = self._spent_s.get(key, 0.0)
        self._spent_s[key] = before + seconds
        if before <= self._scanner.budget_s < self._spent_s[key]:
            self._evidence.findings.append(too_slow(pattern, self._source.name))

    def _keep(self, pattern: SignaturePattern, window: LogWindow, match: Match) -> None:
        """Keeps the first hits of a signature; of those that count only right before a trouble the latest ones."""
        key = id(pattern)
        self._evidence.counts[pattern.entry.id] = self._evidence.counts.get(pattern.entry.id, 0) + window.line.repeated
        latest = bool(pattern.signature.last_before)
        is_full = self._kept[key] >= KEPT_PER_SIGNATURE and not latest
        line = window.line.text.encode()
        if is_full and not counts_in(line, 0, len(line)):
            return
        hit = Hit(
            pattern.entry.id,
            self._places.at(window),
            excerpt(match.text, match.matched, 2000),
            match.matched,
            last_before=pattern.signature.last_before or "",
            timeout_s=stated_wait_s(match.text),
        )
        if is_full:
            self._last_step[key] = hit
            return
        if latest:
            waiting = self._latest.setdefault(key, deque())
            waiting.append(hit)
            if len(waiting) > KEPT_PER_SIGNATURE:
                self._evidence.hits.remove(waiting.popleft())
        self._kept[key] += 1
        self._evidence.hits.append(hit)
        note_going_on(self._evidence, window, hit.place)
        self._scanner.on_hit(hit)

    def _try_clue(self, pattern: CluePattern, chunk: Chunk, at: int) -> None:
        if pattern.match.source not in self._evidence.clues:
            window = LogWindow(chunk, at)
            if pattern.match.search(window.line.text) or pattern.match.search(window.joined.text):
                self._evidence.clues.add(pattern.match.source)

    def _try_crash(self, pattern: CrashPattern, chunk: Chunk, at: int) -> None:
        window = LogWindow(chunk, at)
        start, end = window.bounds
        if pattern.anchor.encode() not in chunk.data[start:end]:
            return
        failure = failure_at(window, pattern.anchor, self._places.at(window))
        if failure is None:
            return
        note_going_on(self._evidence, window, failure.place, failure)
        run = bisect_right(self._starts, failure.place.offset, key=lambda start: start.offset)
        who = f"{failure.place.speaker.pid}{failure.place.speaker.rank}"
        key = f"{run} {who} {is_uncaught(failure)} {skeleton(failure.headline)}"
        if key in self._failures:
            first = self._failures[key]
            self._failures[key] = replace(first, count=first.count + 1, last=failure.place, last_end=failure.end)
        elif len(self._failures) < _KEPT_FAILURES:
            self._failures[key] = failure

    def _sample_progress(self, chunk: Chunk) -> None:
        """Where training visibly went on: everywhere in a small log, at the beginning of each chunk in a large one."""
        small = chunk.is_last and chunk.offset + len(chunk.data) <= _WHOLE_BYTES
        end = len(chunk.data) if small or chunk.is_last else chunk.begin + _SAMPLE_BYTES
        begin = chunk.begin if small else max(chunk.begin, end - _WHOLE_BYTES)
        progress = self._evidence.progress.setdefault(self._source.name, LogProgress())
        add_endings(progress, chunk.offset, chunk.data, begin, end)
        if (at := shut_down_in(chunk.data, begin, end)) >= 0:
            progress.shut_down = chunk.offset + at
        self._note_served(progress, chunk, deque(served_in(chunk.data, begin, end), maxlen=_SERVED_LINES))
        progress.counts += [
            count._replace(offset=chunk.offset + count.offset) for count in counts_in(chunk.data, begin, end)
        ]

    def _note_served(self, progress: LogProgress, chunk: Chunk, places: Iterable[int]) -> None:
        for at in places:
            speaker = LogWindow(chunk, at).line.speaker.filled_from(self._source.speaker)
            progress.served[speaker.pid] = chunk.offset + at

    def _keep_shown(self, failure: Failure) -> None:
        """The entries of an exception whose own line was cut off, and whose words the code that raises it shows."""
        for pattern in self._scanner.index.stated_in(failure.headline):
            hit = Hit(pattern.entry.id, failure.place, failure.headline, failure.headline)
            self._evidence.hits.append(hit)
            self._evidence.counts[hit.entry] = 1
