"""Where another run of the program may begin in a log: its header comes again, or it is said to be restarted; or a
process takes the place of the one that opened the log."""

import re
from collections.abc import Iterator
from pathlib import PurePath

from rldbg.doctor.logs.cleaning import Line, Speaker, clean
from rldbg.doctor.logs.clock import Stamp
from rldbg.doctor.logs.evidence import RunStart
from rldbg.doctor.logs.exception_lines import TRACEBACK
from rldbg.doctor.logs.failures import skeleton
from rldbg.doctor.logs.log_places import LogPlaces
from rldbg.doctor.logs.progress import counts_in
from rldbg.doctor.logs.sources import Chunk
from rldbg.doctor.logs.window import LogWindow

_DATE_WORDS = re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b")
_LAUNCH = re.compile(
    r"(?:\+{1,3} |\S{0,60}[$#] )(?:exec |srun .{0,200}?|env .{0,200}?)?(?:\S*/)?"
    r"(?:python[\d.]*|torchrun|accelerate|deepspeed|ray job submit|bash|sh|uv run|rldbg run)\b"
    r"|[=#*-]{3,20} ?(?i:(?:\w+ ){0,3}?(?:job|run|attempt|launch)\b.{0,60}\d)|SLURM_JOB_?ID\W{1,3}\d"
)
"""A command that a shell shows, and headers with a number or a date; they count where the same one comes again."""
_RESTART = re.compile(
    r"(?i)(?:[\[(]?[\w.-]{1,40}[\])]?:? |[=#*-]{3,20} ?)?"
    r"(?:restart(?:ing|ed)?|re-?launch(?:ing|ed)?|requeu(?:ed|ing))\b"
    r"(?: (?:training|job|run)\b|\W{1,3}(?:attempt )?#?\d)"
    r"(?!.{0,80}\b(?:server|engine|worker|actor|router|rollout|sandbox|environment|replica))"
    r"|.{0,120}\bRestarting worker group"
)
"""What supervisors say when they start a whole program again."""
_WORDS = re.compile(
    rb"\b(?:[Jj]ob|JOB|[Rr]un|RUN|[Aa]ttempt|ATTEMPT|[Ll]aunch|[Rr]estart|RESTART|[Rr]e-?launch|[Rr]equeu|[Rr]etry|[Tt]ry|"
    rb"SLURM_JOB_ID|[Ss]tarting|python|torchrun|accelerate|deepspeed|ray job|bash|sh |uv run|rldbg)"
)
_HEADER_BYTES = 120
_PIECE = re.compile(rb"[^\d\r\n\x1b]{8,}")
_PROCESS = re.compile(rb"\((\w[\w.-]{0,80}) pid=(\d+)[,)]")
_REFUSED = re.compile(rb"(?:^|[\r\n])[^\r\n]{0,40}?([^\s:]{1,80}): error: ([^\r\n]{1,200})")
_USAGE_BYTES = 1 << 14
_NOT_CODE = re.compile(
    rb"(?:^|[\r\n])[^\r\n\"]{0,40}File \"([^\"\r\n]{1,300})\", line \d+[ \t]*[\r\n]"
    rb"(?=(?:[^\r\n]*[\r\n]){1,8}?[^\r\n]{0,40}(?:Syntax|Indentation|Tab)Error)"
)
"""A frame without a function: the file could not be read as code."""
_NO_FUNCTION = re.compile(r'File "[^"]+", line \d+$')
_NOT_CODE_WORDS = "its code has an error"
_GPU = re.compile(r"\S+:\d+:\d+ \[(\d+)\] ")
"""Behind node, process and thread NCCL writes which GPU of the node a process has."""
_OPENING_LINES = 2
_OPENING_BYTES = 4096


class RunStarts:
    """The starts in one log, read chunk by chunk."""

    def __init__(self, places: LogPlaces) -> None:
        self._places = places
        self._opening: list[bytes] = [b""]
        self._opener = Line("", Speaker())
        """The first line of the log."""
        self._begun: Stamp | None = None
        """When the first line of the log came, in the run that goes on."""

    def within(self, chunk: Chunk) -> Iterator[RunStart]:
        """Those in a chunk. A header with an earlier time, or of another rank, is of a log that was joined to this
        one."""
        if chunk.offset == 0 and chunk.begin == 0:
            self._opening = bytes(chunk.data[:_OPENING_BYTES]).lstrip().split(b"\n")[:_OPENING_LINES]
            self._opener = clean(self._opening[0])
        again = set(_opening_places(self._opening[0], chunk.data, chunk.begin, chunk.end))
        first_words = set(_successions(chunk.data))
        refusals = {LogWindow(chunk, at).bounds[0]: said for at, said in _refusals(chunk)}
        for start in sorted(again.union(first_words, _launch_places(chunk.data, chunk.begin, chunk.end))):
            window = LogWindow(chunk, start)
            text = window.line.text
            after_silence = start in again and self._is_after_silence(window)
            if (start in again and self._is_opening(window)) or _may_launch(text):
                header = _header_of(text)
            elif _is_restart(text):
                header, after_silence = "", False
            elif start in first_words:
                header = f"({window.line.speaker.name}) {_header_of(text)}"
            elif after_silence:
                header = ""
            else:
                continue
            if start not in refusals and not self._is_joined(window):
                yield RunStart(window.offset, window.line_number, header, after_silence)
        for start, (program, refusal) in refusals.items():
            window = LogWindow(chunk, start)
            yield RunStart(window.offset, window.line_number, "", program=program, refusal=refusal)

    def _is_opening(self, window: LogWindow) -> bool:
        """Whether the first lines of the log come again; if they are alike, or count, they are of a loop."""
        first = [_header_of(clean(raw).text) for raw in self._opening]
        again = [_header_of(line.text) for line in (window.line, *window.below(_OPENING_LINES - 1))]
        # A failed process and its launcher both end with a traceback.
        is_header = TRACEBACK not in self._opener.text and not self._counts()
        is_same = again == first and len(set(first)) == _OPENING_LINES and is_header
        return is_same and not self._is_of_peer(window)

    def _is_of_peer(self, window: LogWindow) -> bool:
        """Whether another process of the run that goes on writes the first lines of the log: it has another GPU, begins
        in the same second, or the process that opened the log speaks again below."""
        opened, own = self._opener, window.line
        if not (opened.speaker.pid and own.speaker.pid) or opened.speaker.pid == own.speaker.pid:
            return False
        gpus = [found[1] for line in (opened, own) if (found := _GPU.match(line.text))]
        begun, now = self._places.stamp_of(opened.text), self._places.stamp_of(own.text)
        at_once = bool(begun and now and begun.comparable(now) and abs(now.seconds - begun.seconds) < 1)
        return len(set(gpus)) > 1 or at_once or _speaks_below(opened.speaker.pid, window)

    def _counts(self) -> bool:
        return any(counts_in(raw, 0, len(raw)) for raw in self._opening)

    def _is_after_silence(self, window: LogWindow) -> bool:
        """Whether the first line of the log comes again, with others below it, after a silence that is longer than all
        that was said since it came: processes that are started together begin sooner."""
        now = self._places.stamp_of(window.line.text)
        header = _header_of(clean(self._opening[0]).text)
        if now is None or _header_of(window.line.text) != header:
            return False
        begun, self._begun = self._begun, self._begun or now
        above = (self._places.stamp_of(clean(raw).text) for raw in window.raw_above())
        last = next((stamp for stamp in above if stamp), None)
        if begun is None or last is None or not (begun.comparable(last) and last.comparable(now)):
            return False
        if all(_header_of(line.text) == header for line in window.below(1)) or self._counts():
            return False  # a line that is said from time to time
        is_later = now.seconds - last.seconds > last.seconds - begun.seconds > 0
        if is_later:
            self._begun = now
        return is_later

    def _is_joined(self, window: LogWindow) -> bool:
        """Whether a line is of another rank or has an earlier time than the one above it."""
        above = next(window.raw_above(), None)
        before = self._places.stamp_of(clean(above).text) if above is not None else None
        now = self._places.stamp_of(window.line.text)
        is_earlier = bool(before and now and before.comparable(now) and now.seconds < before.seconds)
        return is_earlier or window.line.speaker.rank not in ("", "0")


def _launch_places(data: bytes | bytearray, begin: int, end: int) -> Iterator[int]:
    """Where lines may launch or restart a program: their first words have one of the words for that."""
    last = -1
    for match in _WORDS.finditer(data, begin, end):
        start = max(data.rfind(b"\n", 0, match.start()), data.rfind(b"\r", 0, match.start())) + 1
        if start != last and match.start() - start <= _HEADER_BYTES:
            last = start
            yield start


def _opening_places(first: bytes, data: bytes | bytearray, begin: int, end: int) -> Iterator[int]:
    """Where a line may be the first one of the log again: it has the longest words without a number of it."""
    piece = max(_PIECE.findall(first), key=len, default=b"")
    at = data.find(piece, begin, end) if piece else -1
    while at >= 0:
        yield max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
        at = data.find(piece, at + len(piece), end)


def _speaks_below(pid: str, window: LogWindow) -> bool:
    """Whether a process writes a line somewhere below."""
    named = re.compile(rb"(?:pid=|:)%s\b" % pid.encode())
    places = named.finditer(window.chunk.data, window.bounds[1])
    return any(LogWindow(window.chunk, match.start()).line.speaker.pid == pid for match in places)


def _successions(data: bytes | bytearray) -> Iterator[int]:
    """Where the process begins that opened a log that names its processes, and where another one of its name does so
    when none speaks any more that spoke before."""
    first: dict[tuple[bytes, bytes], int] = {}
    last: dict[tuple[bytes, bytes], int] = {}
    for match in _PROCESS.finditer(data):
        first.setdefault((match[1], match[2]), match.start())
        last[match[1], match[2]] = match.start()
    opener = next((name for name, _pid in first), b"")
    reached = -1
    for process, at in first.items():
        if process[0] == opener and reached < at:
            yield max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
        reached = max(reached, last[process])


def _refusals(chunk: Chunk) -> Iterator[tuple[int, tuple[str, str]]]:
    """Where programs end before they do anything, which ones, and by what: their usage is shown above the error, or
    their own code has one, which is told without a traceback."""
    data = chunk.data
    for match in _REFUSED.finditer(data, chunk.begin, chunk.end):
        usage = data.rfind(b"usage: " + match[1] + b" ", max(0, match.start() - _USAGE_BYTES), match.start())
        if usage >= 0:
            yield usage, (_script(match[1]), skeleton(match[2].decode("utf-8", "replace")))
    for match in _NOT_CODE.finditer(data, chunk.begin, chunk.end):
        above = next(LogWindow(chunk, match.end() - 1).above(1), None)
        if above is None or not above.text[:1].isspace() or _NO_FUNCTION.search(above.text):
            yield match.end() - 1, (_script(match[1]), _NOT_CODE_WORDS)


def _script(path: bytes) -> str:
    return PurePath(path.decode("utf-8", "replace")).name


def _header_of(text: str) -> str:
    """A line without what differs from run to run: numbers, paths, names of days and months."""
    return " ".join(_DATE_WORDS.sub("#", skeleton(text)).split())


def _may_launch(text: str) -> bool:
    return bool(_LAUNCH.match(text))


def _is_restart(text: str) -> bool:
    return bool(_RESTART.match(text))
