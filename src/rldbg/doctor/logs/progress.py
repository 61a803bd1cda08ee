"""Signs of life in a log: steps that are counted, training that is said to be done, requests that are answered."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

_COUNTED = (
    rb"[\"']?[ :=/#]{1,12}(?:[^|\n]{0,12}\|[^|\n]{0,40}\| ?)?"  # behind a bar or not
    rb"\[? ?(\d{1,9}(?:\.\d{1,9})?)(?!\d|[A-Za-z_]\w{0,20}\d|[a-f]{2,}\b)"  # no part of a name, as in `rollout 3f0a`
)
_COUNTERS = tuple(
    re.compile(words + _COUNTED)
    for words in (
        rb"teps?",
        rb"ter(?:ation)?",
        rb"poch",
        rb"pdate",
        rb"pisode",
        rb"ound",
        rb"ollout",
        rb"Training Progress",
    )
)
"""Where training counts. Each begins with plain letters: such expressions are searched for fast."""
_NAME = re.compile(rb"[A-Za-z][\w./-]{0,40}$")
_MODULE = re.compile(rb"\w:$")
"""Loggers write the module, the function and the line of a message with colons between."""
_OF_A_WAIT = re.compile(rb"(?i)(?<![a-z])(?:wait\w*|poll\w*|retry\w*|attempt)[ ./-]?[\w./-]{0,40}$")
"""Before a counter: it counts how often something was looked at that is not there."""
_NAME_BYTES = 40
_LINE_BYTES = 4096
_COUNTS = re.compile(
    rb"(?i)(?:.*[_./-])?(?:steps?|iter|iteration|epoch|update|episode|round|rollout|training progress)"
)
"""The whole name of a counter: not what only ends like one."""
_OF_MANY = re.compile(rb"(?:^|[\r\n])[ \t]{0,4}(?:\d{1,3}%\|[^|\r\n]{0,80}\| {0,4}|\[)(\d{1,9})/\d{1,9}[ \]]")
"""A bar without a title, as trainers draw it, or the number of a line among all; those of loaders have a title."""
_TITLED_BAR = re.compile(
    rb"%\|[^|\r\n]{0,80}\| {0,4}(\d{1,9})/\d{1,9} \[[^\]\r\n]{0,80}\b(?:loss|reward|kl|lr|grad_norm)\b"
)
_FULL_BAR = re.compile(
    rb"(?:^|[\r\n)])[ \t]{0,4}"
    rb"(?i:(?:(?:global|total|overall|main|outer|train(?:ing)?|episodes?|epochs?|steps?|iterations?|updates?|grpo|ppo|dpo|sft"
    rb"|rl|progress)[\s\d\[\]/():-]{0,20}){1,4})?"
    rb"100%\|[^|\r\n]{0,80}\| {0,4}(\d{1,9})/\1 \["
)
"""The bar of a training, with such a title or none, when it is full."""
_LONG_BAR = re.compile(
    rb"(?:^|[\r\n)])[ \t]{0,4}(?![^|\r\n]{0,40}(?i:eval|valid|test|generat|rollout|infer|sampl|load|download|upload|"
    rb"convert|token|process|map|filter|sav|captur|compil|prefill|merg|"
    rb"logp|prob|embed|encod|refer|scor|reward|prepar|pack|cop[yi]|quanti))"
    rb"[^|\r\n%]{1,40}: {1,4}100%\|[^|\r\n]{0,80}\| {0,4}(\d{1,9})/\1 \[(?:\d+ days?, )?\d{1,3}:\d\d:\d\d<00:00[,\]]"
)
"""A full bar with a title of its own that took hours: of all that has bars, only a training does; what loads, samples
and evaluates has such words in its title."""
_FULL_COUNT = re.compile(
    rb"(?:tep|teration|poch|pdate)s?(?:/\w{1,20})?[\"']?[ :=#\"']{1,12}(\d{1,9}) {0,8}/ {0,8}\1(?!\d)"
)
"""The last of all steps; on a line with the results of the step."""
_PAIR = re.compile(rb"(?<![\d/])(\d{1,9}) {0,8}/ {0,8}(\d{1,9})(?![\d/])")
"""How far each counter of a line is: those of epochs may be full long before those of steps."""
_LAST_COUNT = re.compile(
    rb"(?:tep|teration|poch|pdate|pisode|ollout)s?(?:/\w{1,20})?[\"']?[ :=#\"'\[]{1,12}(\d{1,9}) {0,8}/ {0,8}\1(?!\d)"
)
"""A counter that has reached its total."""
_RESULT = re.compile(rb"(?i)loss|reward|\bdone\b")
_OWN_DONE = re.compile(
    rb"Training Progress: 100%\||'train_runtime': |Max number of steps has been reached|Job '[\w.-]{1,80}' succeeded"
)
"""What trainers themselves print when all steps are done, and Ray when the program of a job has returned 0."""
_SAID_DONE = re.compile(
    rb"(?i)(?<![\w-])(?:"
    rb"(?:training|fine-?tuning|experiment|run|job)(?: (?:run|loop|job|process|script|pipeline))?"
    rb"(?: [\"'\w-]{0,60}[\d_'\"][^\s]{0,60})?(?: has| is| was)?(?: been)?"  # its name or number
    rb"[ :_-]{1,3}(?:completed?|completes|finished|done|succeeded|successful)"
    rb"|all (?:\d+ )?(?:training )?(?:epochs?|steps|iterations|updates)[^\r\n]{0,20} (?:completed?|finished|done)"
    rb"|(?:finished|completed|done)(?: with)?(?: the)? training|state: completed"
    rb"|\d+ passed[^\r\n]{0,80} in [\d.]+s"  # tests, which make things fail on purpose
    rb")(?![\w-])"
)
_TESTS_DONE = re.compile(rb"(?:^|[\r\n])={3,} (?:FAILURES|ERRORS) ={3,}")
"""All tests have run; those that failed are told below."""
_PASSED = re.compile(
    rb"(?:^|[\r\n])[ \t]{0,4}(?:\[? {0,7}(?:PASS(?:ED)?|OK)\b|ok(?: \d|[ \t]*(?=[\r\n]|$))|\xe2\x9c[\x85\x93\x94] )"
    rb"|\.\.\. ?(?:ok|OK|PASS(?:ED)?)[ \t]*(?=[\r\n]|$)|\.{3,}[ \t]{1,8}Passed[ \t]"
)
"""A test, a scenario, a case that went well, each on a line of its own, with a word or a check mark."""
_ALL_PASSED = re.compile(
    rb"(?i)(?<![\w-])(?:all (?:(\d+) )?(?:\w+ ){0,3}(?:have )?passed"
    rb"|(\d+)/\2 (?:\w+ ){0,3}passed"
    rb"|([1-9]\d*) (?:tests?|passed|passing|scenarios?|cases?|examples?|specs?|checks?)\W{1,3}(?:\w+ ){0,2}?"
    rb"0 (?:tests? )?(?:failed|failures?|failing)"
    rb"|(?:tests? run|tests|total)[:=] ?([1-9]\d*), {0,2}(?:failures?|failed|errors?)[:=] ?0"
    rb"|100% tests passed, 0 tests failed out of ([1-9]\d*)"
    rb"|ran ([1-9]\d*) tests? in [\d.]+s\s+OK)(?![\w-])"
)
"""The sum of tests of which none failed."""
_SAID_FINAL = re.compile(
    rb"(?i)(?:(?:(?:^|[\r\n])[ \t]{0,4}|[\]:|>)-] ?|\x1b\[\d{0,3}m ?)[('\"]{0,2}"
    rb"final (?:\w+ )?(?:metrics|results?|reward|loss|score|accuracy|evaluation|validation|summary)"
    rb"|(?<![\w-])(?:saved [^\r\n]{0,80}\bfinal|final (?:model|checkpoint|weights)[^\r\n]{0,20} saved))(?![\w-])"
)
"""What is told at the end of a run that went well."""
_SAID_ZERO = re.compile(
    rb"(?i)(?<![\w-])(?:exit(?:ed|s)?|finished|returned)(?: with)?(?: exit| return)?(?: code| status)?"
    rb"[ :=]{1,3}\(?0(?!\.?\w)"
)
_WORK = re.compile(
    rb"(?:(?:^|[\r\n])[ \t]{0,4}|[\]:|>.;,)-] )"
    rb"(?:[Ss]tarting|[Rr]unning|[Ll]aunching|[Ii]nitiali[sz]ing|[Ll]oading|[Ee]valuating|[Mm]erging|[Uu]ploading|[Pp]ushing|"
    rb"[Cc]onverting|[Ee]xporting|usage:) "
)
"""What is said to begin; the command line that is refused is the first thing of another program."""
_CLOSING_WORK = re.compile(
    rb"(?i)\b(?:clean\w*|shut\w*|stop\w*|exit\w*|wandb|hooks?|atexit|coro|pending|finali\w+|destroy\w*|delet\w*)\b"
)
_IN_VAIN = re.compile(
    rb"(?i)\b(?:fail\w*|errors?|exception|abort\w*|crash\w*|kill\w*|unsuccess\w*|not|never|no|if|when|until|before|"
    rb"non-?zero|timed out|out.of.memory|timeout|cancel\w*|(?:code|status)[ :=]{1,3}-?[1-9])\b"
)
_SERVED = re.compile(rb'(?:POST /[^"\n]{0,80}|GET /health\w{0,20}) HTTP/1\.[01]" 200')
_SHUTS_DOWN = re.compile(rb"\b(?:CRITICAL|FATAL)\b[^\n]{0,200}(?:shutting down|exiting|fatal)")
_TO_END = re.compile(rb"SIG(?:TERM|INT)\b|KeyboardInterrupt(?=[:\r\n]|$)")
_GOT_SIGNAL = re.compile(rb"(?i)\b(?:received|got|caught)\b|KeyboardInterrupt")
"""What a process says that was sent a signal to end, not the one that sends it."""
_CLOSED = re.compile(rb"Application shutdown complete")


class Count(NamedTuple):
    """A line in which training counts: what, and how far it is."""

    offset: int
    name: str
    value: float


@dataclass(slots=True)
class LogProgress:
    """The signs of life in one log, in its order."""

    counts: list[Count] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    """Where a trainer itself says that all steps are done."""
    said_done: list[int] = field(default_factory=list)
    """Where anybody says that training is done: also scripts, whatever became of it."""
    said_final: list[int] = field(default_factory=list)
    """Where the last results of a run are told."""
    said_zero: list[int] = field(default_factory=list)
    """Where a program is said to have ended with exit code 0."""
    last_count: int = -1
    """The last place where a counter has reached its total: its last step has begun, or is done."""
    tests_done: int = -1
    """Where tests have run, of which some failed: what came before was caught by them."""
    passed: int = 0
    """How many tests have passed one by one since the last sum."""
    all_passed: int = -1
    """The last place where a sum says that all of them passed: what came before was made to fail, or was survived."""
    works: list[int] = field(default_factory=list)
    """Where something is said to begin that is no part of closing."""
    served: dict[str, int] = field(default_factory=dict)
    """For each process the last place where a server says that it answered a request."""
    shut_down: int = -1
    """The last place where an engine says that it ends: its server goes on answering, with nothing."""
    asked_to_end: list[int] = field(default_factory=list)
    """Where a process says that it was sent a signal to end."""
    closed: list[int] = field(default_factory=list)
    """Where a server says that it is closed: also one whose engine died."""
    full_bars: list[int] = field(default_factory=list)
    """Where the bar of a training, or one that took hours, is full; also among `said_final`."""

    def within(self, begin: int, end: int) -> "LogProgress":
        """The part of it that is of one stretch of the log."""
        return LogProgress(
            [count for count in self.counts if begin <= count.offset < end],
            [at for at in self.done if begin <= at < end],
            [at for at in self.said_done if begin <= at < end],
            [at for at in self.said_final if begin <= at < end],
            [at for at in self.said_zero if begin <= at < end],
            self.last_count if begin <= self.last_count < end else -1,
            self.tests_done if begin <= self.tests_done < end else -1,
            self.passed,
            self.all_passed if begin <= self.all_passed < end else -1,
            [at for at in self.works if begin <= at < end],
            {pid: at for pid, at in self.served.items() if begin <= at < end},
            self.shut_down if begin <= self.shut_down < end else -1,
            [at for at in self.asked_to_end if begin <= at < end],
            [at for at in self.closed if begin <= at < end],
            [at for at in self.full_bars if begin <= at < end],
        )

    def was_being_stopped(self, offset: int) -> bool:
        """Whether a place lies between a signal to end and the closing of the server that it was for."""
        asked = max((at for at in self.asked_to_end if at < offset), default=None)
        return asked is not None and any(at > offset for at in self.closed) and not self._closed_between(asked, offset)

    def _closed_between(self, begin: int, end: int) -> bool:
        return any(begin < at < end for at in self.closed)

    def went_on_after(self, offset: int, until: float = float("inf")) -> bool:
        """Whether any counter passed after a place what it had reached before, or began there."""
        for values in self._by_name():
            before = [value for at, value in values if at < offset]
            after = [value for at, value in values if offset < at < until]
            if before and max(after, default=0.0) > max(before):
                return True
            if not before and len(set(after)) > 1:
                return True
        return False

    def counted_on_after(self, offset: int, times: int = 1, ended: float = float("inf")) -> bool:
        """Whether a counter was at least two further on after a place, so many times; where none had begun before it,
        whether one counted three in a row: settings that are printed are called like counters too. Where the program
        ended at some place, what a counter says after it that had begun before is of another run."""
        begun = False
        fresh: list[list[float]] = []
        for values in self._by_name():
            before = [value for at, value in values if at < offset]
            until = ended if values[0][0] < ended else float("inf")
            after = [value for at, value in values if offset < at < until]
            begun = begun or any(one < other for one, other in pairwise(before))
            if not before:
                fresh.append(after)
            elif _is_two_further(before[-1], after) and len({value for value in after if value > before[-1]}) >= times:
                return True
        return not begun and any(map(_counts_on, fresh))

    def counts_again_after(self, offset: int) -> int | None:
        """Where a counter that had only grown before a place counts on after it from a lower number, from the one that
        it had reached, or from the next one where something is said to begin in between; else nothing."""
        again: list[int] = []
        for values in self._by_name():
            before = [value for at, value in values if at < offset]
            after = [(at, value) for at, value in values if at > offset]
            if before != sorted(before) or not before or len(after) < 2 or after[0][1] >= after[1][1]:
                continue
            at, first = after[0]
            is_said = any(offset < work < at for work in self.works)
            is_redone = first == before[-1] and len(before) == len(set(before))  # bars are drawn again and again
            if first < before[-1] or is_redone or (is_said and first <= before[-1] + 1):
                again.append(at)
        return min(again, default=None)

    @property
    def last_done(self) -> int:
        return max(self.done, default=-1)

    @property
    def closed_at(self) -> int | None:
        """Where training was said to be done, if nothing counted on or began after that; a number that is only told
        again, as when a checkpoint is saved, is no step."""
        last = max((at for values in self._by_name() for at in _moves(values)), default=-1)
        last = max((last, *self.works))
        return min((at for at in (*self.done, *self.said_done, *self.said_final) if at > last), default=None)

    def _by_name(self) -> Iterator[list[tuple[int, float]]]:
        found: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for count in self.counts:
            found[count.name].append((count.offset, count.value))
        return iter(found.values())


def _moves(values: Sequence[tuple[int, float]]) -> Iterator[int]:
    """The places where a counter stands elsewhere than before."""
    return (at for (_before, one), (at, other) in pairwise(values) if one != other)


def _is_two_further(reached: float, after: Sequence[float]) -> bool:
    if reached.is_integer() and all(value.is_integer() for value in after):
        return max(after, default=reached) >= reached + 2
    return len({value for value in after if value > reached}) > 1  # a fraction of an epoch


def _counts_on(steps: Sequence[float]) -> bool:
    """Whether three numbers in a row count on by one, or three fractions grow."""
    each = [step for number, step in enumerate(steps) if number == 0 or steps[number - 1] != step]
    in_threes = zip(each, each[1:], each[2:], strict=False)
    return any(c == b + 1 == a + 2 or (a < b < c and not (a.is_integer() and b.is_integer())) for a, b, c in in_threes)


def counts_in(data: bytes | bytearray, begin: int, end: int) -> list[Count]:
    """Where training counts in a part of some bytes, in their order."""
    found: list[Count] = []
    for words in _COUNTERS:
        for match in words.finditer(data, begin, end):
            name = _counter_name(data, match)
            if name:
                found.append(Count(_line_start(data, match.start()), name, float(match[1])))
    for shape in (_OF_MANY, _TITLED_BAR):
        found += [
            Count(_line_start(data, match.start(1)), "of many", float(match[1]))
            for match in shape.finditer(data, begin, end)
        ]
    return sorted(found)


def _line_start(data: bytes | bytearray, at: int) -> int:
    low = max(0, at - _LINE_BYTES)
    begin = data.rfind(b"\n", low, at) + 1 or low
    return max(begin, data.rfind(b"\r", begin, at) + 1)


def _counter_name(data: bytes | bytearray, match: re.Match[bytes]) -> str:
    """The whole name before the number, or nothing where only its end is called like a counter."""
    word = re.match(rb"[A-Za-z ]+", match[0])
    assert word is not None
    end = match.start() + len(word[0].rstrip())
    before = bytes(data[max(0, match.start() - _NAME_BYTES) : end])
    name = _NAME.search(before)
    if name and (_MODULE.search(before[: name.start()]) or _OF_A_WAIT.search(before)):
        return ""
    if match[0].startswith(b"Training Progress"):
        return "training progress"
    return name[0].decode().lower() if name and _COUNTS.fullmatch(name[0]) else ""


def add_endings(progress: LogProgress, chunk_offset: int, data: bytes | bytearray, begin: int, end: int) -> None:
    """Notes the ends of the lines, in a part of some bytes, that say that training is done or a program ended well."""
    said = (
        (progress.said_done, _SAID_DONE),
        (progress.said_final, _SAID_FINAL),
        (progress.said_final, _FULL_BAR),
        (progress.said_final, _LONG_BAR),
        (progress.full_bars, _FULL_BAR),
        (progress.full_bars, _LONG_BAR),
        (progress.said_zero, _SAID_ZERO),
    )
    for match in _WORK.finditer(data, begin, end):
        start, stop = _line(data, match)
        if not _CLOSING_WORK.search(data, start, stop):
            progress.works.append(chunk_offset + stop)
    for match in _LAST_COUNT.finditer(data, begin, end):
        progress.last_count = chunk_offset + match.start()
    for match in _TO_END.finditer(data, begin, end):
        if _GOT_SIGNAL.search(data, *_line(data, match)):
            progress.asked_to_end.append(chunk_offset + match.start())
    progress.closed += [chunk_offset + match.start() for match in _CLOSED.finditer(data, begin, end)]
    for match in _TESTS_DONE.finditer(data, begin, end):
        progress.tests_done = chunk_offset + match.start()
    _add_passed(progress, chunk_offset, data, begin, end)
    progress.done += [chunk_offset + _line(data, match)[1] for match in _OWN_DONE.finditer(data, begin, end)]
    for known, shape in said:
        lines = {_line(data, match) for match in shape.finditer(data, begin, end)}
        known += [chunk_offset + stop for start, stop in sorted(lines) if not _IN_VAIN.search(data, start, stop)]
    full = {_line(data, match) for match in _FULL_COUNT.finditer(data, begin, end)}
    progress.said_final += [
        chunk_offset + stop
        for start, stop in sorted(full)
        if _RESULT.search(data, start, stop) and all(one == all_ for one, all_ in _PAIR.findall(data, start, stop))
    ]


def _add_passed(progress: LogProgress, chunk_offset: int, data: bytes | bytearray, begin: int, end: int) -> None:
    """Notes a sum of tests that all passed; where each one is told too, there are no more of them than in the sum."""
    passed = [match.start() for match in _PASSED.finditer(data, begin, end)]
    since = begin
    for match in _ALL_PASSED.finditer(data, begin, end):
        progress.passed += sum(since <= at < match.start() for at in passed)
        since = match.end()
        number = next((int(group) for group in match.groups() if group), progress.passed)
        if number >= progress.passed > 1:
            progress.all_passed = chunk_offset + match.start()
        elif not progress.passed:
            progress.said_done.append(chunk_offset + match.end())
        progress.passed = 0
    progress.passed += sum(at >= since for at in passed)


def tells_final_results(text: str) -> bool:
    """Whether a line tells the last results of a run."""
    return bool(_SAID_FINAL.search(text.encode())) and not _IN_VAIN.search(text.encode())


def _line(data: bytes | bytearray, match: re.Match[bytes]) -> tuple[int, int]:
    """Where the line begins and ends in which some words end: what it counts is no step after them."""
    start = max(data.rfind(b"\n", 0, match.end()), data.rfind(b"\r", 0, match.end())) + 1
    ends = (data.find(b"\n", match.end()), data.find(b"\r", match.end()))
    return start, min((at for at in ends if at >= 0), default=len(data))


def served_in(data: bytes | bytearray, begin: int, end: int) -> Iterator[int]:
    return (match.start() for match in _SERVED.finditer(data, begin, end))


def shut_down_in(data: bytes | bytearray, begin: int, end: int) -> int:
    return max((match.start() for match in _SHUTS_DOWN.finditer(data, begin, end)), default=-1)
