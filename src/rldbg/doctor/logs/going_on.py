"""Signs, in the lines around a failure, that its process went on: it says how, or does again what it did before."""

import re

from rldbg.doctor.logs.cleaning import Line
from rldbg.doctor.logs.endings import is_ending
from rldbg.doctor.logs.evidence import Failure, LogEvidence, LogPlace
from rldbg.doctor.logs.failures import is_error_line, skeleton
from rldbg.doctor.logs.progress import tells_final_results
from rldbg.doctor.logs.standing import is_information, is_tried_again, says_gone_on
from rldbg.doctor.logs.survival import is_of_import, is_of_model, is_uncaught
from rldbg.doctor.logs.tracebacks import same_voice
from rldbg.doctor.logs.window import LogWindow

_RESUMED_LINES = 40
_FENCE = "```"
_FENCED_LINES = 60
_AFTER_FENCE_LINES = 8
_NUMBER = re.compile(r"(?<![\d:.,-])\d{1,9}(?![\d:.,-]*\d)")
"""No part of a time, a date or a version."""
_DEALS_WITH = re.compile(
    r"(?i)(?:\W{0,3}\[?\w[\w.:-]{0,40}\W{1,3}){0,4}?"
    r"(?:falling back|retrying|skipping|skipped|ignoring|continuing|proceeding|"
    r"(?:re|at)?try(?:ing)?(?: \w+){0,3} ?(?:size|with|of)\w{0,10}[ =:]{1,3}\d+|"
    r"(?:reducing|decreasing|lowering|halving)(?: \w+){0,3} (?:size|tokens|length)|"
    r"reconnected|recovered|going on|trying again|will (?:try|retry)|using \S{1,40} instead)\b"
)
_DOES_WITHOUT = re.compile(r"(?i)\b(?:unavailable|not available|is missing|disabled|ignored|optional)\b")
"""What is said of a package that could not be imported, and is not needed."""


def note_going_on(evidence: LogEvidence, window: LogWindow, place: LogPlace, failure: Failure | None = None) -> None:
    """Notes a known line, or a failure, that its process visibly dealt with or outlived."""
    at = (place.file, window.offset)
    lines = failure.lines - 1 if failure else 0
    if (
        _is_dealt_with(window, lines, is_import=is_of_import(failure))
        or _counts_on_around(window, lines)
        or _is_quoted_in_fences(window)
    ):
        evidence.dealt_with.add(at)
    if failure is not None and _is_output_of_model(window, failure):
        evidence.dealt_with.add(at)
    if failure is not None and (_is_resumed(window, failure) or _tells_results(window, failure)):
        evidence.resumed.add(at)


def _is_dealt_with(window: LogWindow, lines: int, *, is_import: bool) -> bool:
    """Whether the program says under a failure of so many more lines how it goes on, and goes on."""
    below = [line for line in window.below(lines + 2) if line.text.strip()][lines:]
    if len(below) < 2:
        return False
    return _deals_with(below[0].text) or (is_import and bool(_DOES_WITHOUT.search(below[0].text)))


def _counts_on_around(window: LogWindow, lines: int) -> bool:
    """Whether the line right above comes again right below with the next number: what stands between is of one round of
    a loop, as the verdict on one sample is. What is tried again is no next round."""
    above = next((line for line in window.above(1) if same_voice(line, window.line)), None)
    below = next((line for line in list(window.below(lines + 1))[lines:] if same_voice(line, window.line)), None)
    if above is None or below is None or is_tried_again(above.text) or skeleton(above.text) != skeleton(below.text):
        return False
    one, other = _NUMBER.search(above.text), _NUMBER.search(below.text)
    return one is not None and other is not None and int(other[0]) == int(one[0]) + 1


def _is_quoted_in_fences(window: LogWindow) -> bool:
    """Whether a line stands between two fences, as in the text of a model that quotes what a program printed, and under
    them the log goes on as it did above them."""
    above = [line.text.strip() for line in window.above(_FENCED_LINES) if same_voice(line, window.line)]
    below = [line.text.strip() for line in window.below(_FENCED_LINES) if same_voice(line, window.line)]
    opened = next((at for at, text in enumerate(above) if text.startswith(_FENCE)), None)
    closed = next((at for at, text in enumerate(below) if text == _FENCE), None)
    if opened is None or closed is None:
        return False
    before = {skeleton(text) for text in above[opened + 1 :]} - {_FENCE}
    return any(skeleton(text) in before for text in below[closed + 1 : closed + 1 + _AFTER_FENCE_LINES])


def _is_output_of_model(window: LogWindow, failure: Failure) -> bool:
    """Whether a failure is of the code of a model, or the output of a program, and any line follows that is not the
    end of a program."""
    if not is_of_model(failure):
        return False
    below = _below(window, failure, 1)
    return bool(below) and not (is_ending(below[0]) or is_error_line(below[0]))


def _is_resumed(window: LogWindow, failure: Failure) -> bool:
    """Whether a process caught an exception: the lines above it come again below it, with other numbers."""
    if is_uncaught(failure) or not failure.frames or is_of_model(failure):
        return False
    pid = failure.place.speaker.pid
    below = _below(window, failure, _RESUMED_LINES)
    own = [each for each in below if each.speaker.pid == pid and is_information(each.text)]
    before = {skeleton(each.text) for each in window.above(_RESUMED_LINES) if each.speaker.pid == pid}
    again = {each.text for each in own if skeleton(each.text) in before}
    return len(again) > 1 and not any(is_tried_again(text) for text in again)


def _tells_results(window: LogWindow, failure: Failure) -> bool:
    """Whether the process itself, which its pid tells from others, tells its last results right under an exception: it
    did not end there, as Ray's workers do not by what a handler of signals raises."""
    pid = failure.place.speaker.pid
    own = (each for each in _below(window, failure, _RESUMED_LINES) if pid and each.speaker.pid == pid)
    return any(tells_final_results(each.text) for each in own)


def _below(window: LogWindow, failure: Failure, count: int) -> list[Line]:
    own_lines = 0 if failure.quoted else failure.lines - 1
    return list(window.below(own_lines + count))[own_lines:]


def _deals_with(text: str) -> bool:
    """Whether a line says how the program goes on after what is above it."""
    return bool(_DEALS_WITH.match(text)) or says_gone_on(text)
