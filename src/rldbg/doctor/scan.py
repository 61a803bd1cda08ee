"""One pass over all logs: anchors are found in raw bytes, and only around them is anything read as text.

Memory stays flat: of each signature some lines of each log are kept, the others counted. Time stays bounded: in a log
flooded with one message only the first places of each megabyte are tried, and a signature whose expression is slow has
a budget in each log, beyond which it is skipped and named in a finding.
"""

import re
import time
import zlib
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from rldbg.doctor.attempts import OPENING_LINES, header_of, is_restart, launch_places, may_launch, opening_places
from rldbg.doctor.cleaning import clean
from rldbg.doctor.clock import Stamp, stamp_in, stated_wait_s, stated_year
from rldbg.doctor.endings import ENDING_LINES, is_ending, is_of_a_tool
from rldbg.doctor.evidence import (
    LAST_ERROR,
    STILL_TRYING,
    Failure,
    Hit,
    LogEnd,
    LogEvidence,
    LogPlace,
    RunStart,
    excerpt,
)
from rldbg.doctor.failures import cut_traceback, failure_at, is_error_line, skeleton
from rldbg.doctor.patterns import CluePattern, CrashPattern, SearchIndex, SignaturePattern, too_slow
from rldbg.doctor.progress import LogProgress, add_endings, counts_in, served_in, shut_down_in
from rldbg.doctor.signatures import Match, match_at
from rldbg.doctor.sources import MARGIN_BYTES, Chunk, LogSource, chunks, unreadable
from rldbg.doctor.standing import deals_with, is_information, is_tried_again
from rldbg.doctor.survival import is_of_model, is_uncaught
from rldbg.doctor.window import FOLDED_UP_TO_BYTES, LogWindow, straddling

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
_CLOSING_LINES = 3
_RESUMED_LINES = 40
_OPENING_BYTES = 4096
_LONGEST_ANCHOR_BYTES = 256
"""An anchor that begins in a chunk may end this far in its margin."""
_WHOLE_BYTES = 1 << 18
_BAR = re.compile(r"(?<!\d)(?P<done>\d{1,9})/(?P<total>\d{1,9}) \[\d\d:\d\d")
"""How progress bars count."""
_NATIVE_STACK = re.compile(r"frame #\d+: |Exception raised from \w+ at |\s*$")
_CLOCK_SHAPE = re.compile(rb"\d\d:\d\d:\d\d")
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
        self._seen_lines: set[tuple[str, str, int]] = set()
        self._failures: dict[str, Failure] = {}
        self._tail: Chunk | None = None
        self._bytes = 0
        self._year, self._year_is_guessed, self._size = 1970, True, 0
        self._opening: list[bytes] = [b""]
        self._starts: list[RunStart] = self._evidence.starts.setdefault(source.name, [])
        self._evidence.files.append(source.name)

    def take(self, chunk: Chunk) -> None:
        if self._tail is None:
            stated = stated_year(chunk.data) or self._scanner.year
            self._year, self._year_is_guessed = stated or self._source.year, not stated
            self._scanner.year = self._scanner.year or stated_year(chunk.data)
            self._size = self._source.size
        self._tail = chunk
        self._bytes = chunk.offset + len(chunk.data)
        self._tries_here.clear()
        self._note_starts(chunk)
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

    def finish(self) -> None:
        for name, count in self._flooded.items():
            if name in self._evidence.counts:
                self._evidence.counts[name] += count
        for failure in self._failures.values():
            known = tuple(self._scanner.index.known(failure.headline))
            self._evidence.failures.append(replace(failure, known_as=known))
        last_start = self._starts[-1].offset if self._starts else 0
        caught = self._evidence.resumed | self._evidence.dealt_with
        open_ones = [each for each in self._failures.values() if (self._source.name, each.place.offset) not in caught]
        if not any((each.last or each.place).offset >= last_start for each in open_ones):
            outlived = max(((each.last or each.place).line + each.lines for each in self._failures.values()), default=0)
            self._note_ending(outlived)
            self._note_unfinished()
        last, lines = self._last_stamp()
        closing = next((each.line_number for each in self._backwards() if not _NATIVE_STACK.match(each.line.text)), 0)
        self._evidence.ends.append(LogEnd(self._source.name, self._source.speaker, last, lines, self._bytes, closing))

    def _try_signature(self, pattern: SignaturePattern, chunk: Chunk, at: int) -> None:
        key = id(pattern)
        limit = _TRIES_IN_FLOOD if self._tries[key] > _FLOOD else _TRIES_PER_CHUNK
        if self._tries_here[key] >= limit or self._spent_s.get(key, 0.0) > self._scanner.budget_s:
            self._flooded[pattern.entry.id] += 1
            return
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
        if self._kept[key] >= KEPT_PER_SIGNATURE and not latest:
            return
        hit = Hit(
            pattern.entry.id,
            self._place(window),
            excerpt(match.text, match.matched, 2000),
            match.matched,
            last_before=pattern.signature.last_before or "",
            timeout_s=stated_wait_s(match.text),
        )
        if latest:
            waiting = self._latest.setdefault(key, deque())
            waiting.append(hit)
            if len(waiting) > KEPT_PER_SIGNATURE:
                self._evidence.hits.remove(waiting.popleft())
        self._kept[key] += 1
        self._evidence.hits.append(hit)
        self._note_dealt_with(window, 0)
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
        failure = failure_at(window, pattern.anchor, self._place(window))
        if failure is None:
            return
        self._note_dealt_with(window, failure.lines - 1)
        self._note_resumed(window, failure)
        run = bisect_right(self._starts, failure.place.offset, key=lambda start: start.offset)
        who = f"{failure.place.speaker.pid}{failure.place.speaker.rank}"
        key = f"{run} {who} {is_uncaught(failure)} {skeleton(failure.headline)}"
        if key in self._failures:
            first = self._failures[key]
            self._failures[key] = replace(first, count=first.count + 1, last=failure.place)
        elif len(self._failures) < _KEPT_FAILURES:
            self._failures[key] = failure

    def _note_starts(self, chunk: Chunk) -> None:
        """Where another run of the program may begin: its header comes again, or it is said to be restarted. A header
        with an earlier time, or of another rank, is of a log that was joined to this one."""
        if max(self._size, chunk.offset + len(chunk.data)) > FOLDED_UP_TO_BYTES:
            return
        if chunk.offset == 0 and chunk.begin == 0:
            self._opening = bytes(chunk.data[:_OPENING_BYTES]).lstrip().split(b"\n")[:OPENING_LINES]
        again = set(opening_places(self._opening[0], chunk.data, chunk.begin, chunk.end))
        for start in sorted(again.union(launch_places(chunk.data, chunk.begin, chunk.end))):
            window = LogWindow(chunk, start)
            text = window.line.text
            if (start in again and self._is_opening(window)) or may_launch(text):
                self._add_start(window, header_of(text))
            elif is_restart(text):
                self._add_start(window, "")

    def _is_opening(self, window: LogWindow) -> bool:
        """Whether the first lines of the log come again; if they are alike, or count, they are of a loop."""
        first = [header_of(clean(raw).text) for raw in self._opening]
        again = [header_of(line.text) for line in (window.line, *window.below(OPENING_LINES - 1))]
        counts = any(counts_in(raw, 0, len(raw)) for raw in self._opening)
        return again == first and len(set(first)) == OPENING_LINES and not counts

    def _add_start(self, window: LogWindow, header: str) -> None:
        """A run may begin here, unless the line is of another rank or has an earlier time than the one above it: then
        it is of a log that was joined to this one."""
        above = next(window.raw_above(), None)
        before = self._stamp_of(clean(above).text) if above is not None else None
        now = self._stamp_of(window.line.text)
        is_joined = before and now and before.comparable(now) and now.seconds < before.seconds
        if not is_joined and window.line.speaker.rank in ("", "0"):
            self._starts.append(RunStart(window.offset, window.line_number, header))

    def _note_dealt_with(self, window: LogWindow, lines: int) -> None:
        """Notes a failure under whose lines the program says how it goes on, and goes on."""
        below = [line for line in window.below(lines + 2) if line.text.strip()][lines:]
        if len(below) > 1 and deals_with(below[0].text):
            self._evidence.dealt_with.add((self._source.name, window.offset))

    def _note_resumed(self, window: LogWindow, failure: Failure) -> None:
        """Notes an exception that its process caught: the lines above it come again below it, with other numbers. After
        the code of a model, or the output of a program, any line is enough that is not the end of a program."""
        if is_uncaught(failure) or not failure.frames:
            return
        place = (self._source.name, window.offset)
        own_lines = 0 if failure.quoted else failure.lines - 1
        below = list(window.below(own_lines + _RESUMED_LINES))[own_lines:]
        if is_of_model(failure):
            if below and not (is_ending(below[0]) or is_error_line(below[0])):
                self._evidence.dealt_with.add(place)
            return
        pid = failure.place.speaker.pid
        own = [each for each in below if each.speaker.pid == pid and is_information(each.text)]
        before = {skeleton(each.text) for each in window.above(_RESUMED_LINES) if each.speaker.pid == pid}
        again = {each.text for each in own if skeleton(each.text) in before}
        if len(again) > 1 and not any(is_tried_again(text) for text in again):
            self._evidence.resumed.add(place)

    def _place(self, window: LogWindow) -> LogPlace:
        return LogPlace(
            self._source.name,
            window.line_number,
            window.offset,
            window.line.speaker.filled_from(self._source.speaker),
            self._stamp(window),
        )

    def _stamp(self, window: LogWindow) -> Stamp | None:
        if own := self._stamp_of(window.line.text):
            return own
        for raw in chain(islice(window.raw_above(), 25), islice(window.raw_below(), 8)):
            if not _CLOCK_SHAPE.search(raw):
                continue
            line = clean(raw)
            if line.speaker.pid == window.line.speaker.pid and (stamp := self._stamp_of(line.text)):
                return stamp
        return None

    def _stamp_of(self, text: str) -> Stamp | None:
        return stamp_in(text, year=self._year, guessed=self._year_is_guessed)

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

    def _backwards(self) -> Iterator[LogWindow]:
        """The lines of the log's last part, the last one first."""
        rest = self._tail.data.rstrip() if self._tail is not None else b""
        while self._tail is not None and rest:
            window = LogWindow(self._tail, len(rest) - 1)
            yield window
            rest = rest[: window.bounds[0]].rstrip()

    def _note_ending(self, since: int) -> None:
        """How a log ends that has no exception from a line on: in the middle of a traceback, or with the end of a
        program."""
        end = next(self._backwards(), None)
        has_hits = any(hit.place.file == self._source.name for hit in self._evidence.hits)
        if end is not None and not has_hits and (cut := cut_traceback(end, self._place(end))):
            self._evidence.failures.append(cut)
            self._keep_shown(cut)
            return
        last = [each for each in islice(self._backwards(), ENDING_LINES) if each.line_number >= since]
        in_order = [window.line for window in reversed(last)]
        ends = [
            (LAST_ERROR, window)
            for number, window in enumerate(reversed(last))
            if is_ending(window.line) and window.is_report and not is_of_a_tool(in_order, number)
        ]
        ends += [(LAST_ERROR, window) for window in last[:_CLOSING_LINES] if is_error_line(window.line)]
        ends += [(STILL_TRYING, window) for window in _still_trying(last)]
        for kind, window in ends:
            said = window.line.text.strip()[:300]
            self._evidence.endings.append(Failure(kind, said, self._place(window), is_crash=is_ending(window.line)))

    def _note_unfinished(self) -> None:
        """The progress bar in the middle of which a log ends."""
        bars = (_BAR.search(window.line.text) for window in islice(self._backwards(), _CLOSING_LINES))
        last = next((bar for bar in bars if bar), None)
        if last and int(last["done"]) < int(last["total"]):
            self._evidence.unfinished[self._source.name] = f"{last['done']}/{last['total']}"

    def _keep_shown(self, failure: Failure) -> None:
        """The entries of an exception whose own line was cut off, and whose words the code that raises it shows."""
        for pattern in self._scanner.index.stated_in(failure.headline):
            hit = Hit(pattern.entry.id, failure.place, failure.headline, failure.headline)
            self._evidence.hits.append(hit)
            self._evidence.counts[hit.entry] = 1

    def _last_stamp(self) -> tuple[Stamp | None, int]:
        if self._tail is None:
            return None, 0
        data = self._tail.data
        lines = self._tail.first_line + data.count(b"\n")
        for raw in reversed(bytes(data[-65536:]).splitlines()[-400:]):
            if stamp := self._stamp_of(clean(raw[:600]).text):
                return stamp, lines
        return None, lines


def _still_trying(last: Sequence[LogWindow]) -> list[LogWindow]:
    """The line with which a log ends, if it says that something is tried again and a line above says the same."""
    said = [skeleton(window.line.text) for window in last]
    if not said or not is_tried_again(last[0].line.text) or said[0] not in said[1:]:
        return []
    return [last[0]]
