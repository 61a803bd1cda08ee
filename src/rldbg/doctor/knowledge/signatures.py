"""Whether a signature matches at a line: its text, its neighbouring lines, and that the text is not just advice."""

import re
from typing import NamedTuple

from rldbg.doctor.knowledge.entries import NumericCondition
from rldbg.doctor.knowledge.patterns import SignaturePattern
from rldbg.doctor.logs.cleaning import without_environment
from rldbg.doctor.logs.standing import is_information, is_setting, is_warning
from rldbg.doctor.logs.window import LogWindow
from rldbg.doctor.search.expressions import Expression

NEAR_LINES = 60
_FRAME_LINES = 6
_FRAME = re.compile(r'(?P<file>[^"\s]+\.pyx?)"?, line \d+')

_ADVICE = re.compile(
    r"\b(?:may(?! +\d)|might|could|can|possibl[ey]|potential(?:ly)?|likely|usually|often|sometimes|perhaps|maybe)\b"
    r"|\b(?:common (?:causes?|reasons?)|for (?:example|instance)|such as|in case|instead of|refer to|unless)\b"
    r"|\b(?:if (?:you|the|exit|this|it|there|your)|when (?:you|the)|check (?:that|if|whether)|make sure|ensure)\b"
    r"|\b(?:please (?:try|check|make|consider|see)|try (?:to|setting|using)|consider|hint|tip)\b"
    r"|\bto (?:avoid|fix|debug|resolve|prevent)\b|\be\.g\.|\(\d\) ",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.;!?] |: \(1\)|\n")
_UNITS = {"": 1, "b": 1, "kib": 2**10, "kb": 10**3, "mib": 2**20, "mb": 10**6, "gib": 2**30, "gb": 10**9, "tib": 2**40}
_QUANTITY = re.compile(r"([\d.]+)\s*([A-Za-z]*)")


class Match(NamedTuple):
    """A signature that holds: the line (put together again if it was wrapped) and the words that matched."""

    text: str
    matched: str


def match_at(pattern: SignaturePattern, window: LogWindow) -> Match | None:
    """The match of a signature at a place, or None when its words or its context do not hold."""
    text, found = window.line.text, pattern.match.search(window.line.text)
    if found is None:
        text, found = window.joined.text, _across_fold(pattern, window)
    if found is None:
        return None
    signature = pattern.signature
    if not _is_stated(pattern, window, text, found.start()):
        return None
    if pattern.unless is not None and pattern.unless.search(text):
        return None
    if window.is_ignored or window.is_test_name or (window.is_code and not signature.in_code):
        return None
    if signature.of_driver and window.line.speaker.name:
        return None
    if not signature.as_advice and _is_advice(text, found.start()):
        return None
    if not all(_holds(condition, found) for condition in signature.when):
        return None
    if not _neighbourhood_fits(pattern, window):
        return None
    return Match(text, found[0])


def _is_stated(pattern: SignaturePattern, window: LogWindow, text: str, at: int) -> bool:
    """Whether the words report what happened: no warning, no information, and nothing quotes them."""
    if not pattern.in_warnings and is_warning(window.line.text):
        return False
    if not pattern.in_information and is_information(window.line.text):
        return False
    return (pattern.in_settings or not is_setting(text, at)) and not window.is_model_text


def _across_fold(pattern: SignaturePattern, window: LogWindow) -> re.Match[str] | None:
    """A match that begins or ends in the place's own line; one inside a neighbour is the neighbour's."""
    text, begin, end = window.joined
    return next((m for m in pattern.match.finditer(text) if m.start() < end and m.end() > begin), None)


def _neighbourhood_fits(pattern: SignaturePattern, window: LogWindow) -> bool:
    if pattern.raised_in is not None and not _was_raised_in(pattern.raised_in, window):
        return False
    if pattern.near is None and pattern.not_near is None:
        return True
    lines = [*window.above(NEAR_LINES), window.line, *window.below(NEAR_LINES)]
    texts = [line.text for line in lines if line.speaker.is_beside(window.line.speaker)]
    if pattern.near is not None and not any(pattern.near.search(text) for text in texts):
        return False  # what another process says is no circumstance of this one
    if pattern.undone_by is not None and not _still_holds(pattern, window):
        return False
    return pattern.not_near is None or not any(pattern.not_near.search(line.text) for line in lines)


def _still_holds(pattern: SignaturePattern, window: LogWindow) -> bool:
    """Whether of what `near` says and what undoes it, the former was said last before the place."""
    assert pattern.near is not None and pattern.undone_by is not None
    for line in window.above(NEAR_LINES):
        if pattern.undone_by.search(line.text):
            return False
        if pattern.near.search(line.text) and line.speaker.is_beside(window.line.speaker):
            return True
    return True  # it is said below


def _was_raised_in(place: Expression, window: LogWindow) -> bool:
    """Whether the last file above an exception is of a kind; a frame has its code and carets under it."""
    own = (line for line in window.above(_FRAME_LINES) if line.speaker.may_be(window.line.speaker))
    frames = (frame for line in own if (frame := _FRAME.search(line.text)))
    last = next(frames, None)
    return last is not None and place.search(without_environment(last["file"])) is not None


def _is_advice(text: str, start: int) -> bool:
    """Whether the sentence had turned into a supposition or a hint before the matching words came."""
    before = text[max(0, start - 400) : start]
    ends = [match.end() for match in _SENTENCE_END.finditer(before)]
    sentence = before[ends[-1] :] if ends else before
    return bool(_ADVICE.search(sentence))


def _holds(condition: NumericCondition, match: re.Match[str]) -> bool:
    left, right = _quantity(match[condition.left]), _quantity(match[condition.right])
    return left is not None and right is not None and left > condition.factor * right


def _quantity(text: str | None) -> float | None:
    found = _QUANTITY.search(text or "")
    if found is None or found[2].lower() not in _UNITS:
        return None
    try:
        return float(found[1]) * _UNITS[found[2].lower()]
    except ValueError:
        return None
