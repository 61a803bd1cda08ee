"""Whether the words of a line say that something failed: what its own logger calls it, and whether they are quoted.

A warning, an information, a setting that is printed and the text of a model can hold the words of any failure.
"""

import re

_LEVEL = re.compile(r"(?<![\w'])(?P<word>INFO|DEBUG|TRACE|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)(?![\w'])")
_LEVEL_WITHIN = 120
_WORD_BEFORE = re.compile(r"[A-Za-z_][\w./-]*")
_WORDS_BEFORE = 3
"""Before the level loggers write times and numbers, and at most this many names of processes, files and modules."""
_LEVEL_FIELD = re.compile(r"\blevel=\W?(?P<word>\w{4,8})")
_LETTER = re.compile(
    r"\s*(?:[\w.-]{1,60}: )?\[?(?P<glog>[IWEFD])\d{3,4} \d\d:\d\d"  # glog, klog and torch, behind a node's name or not
    r"|\s*\[\d{4}-\d\d-\d\d [\d:,.]+ (?P<ray>[IWEFCD]) \d+ \d+\]"  # Ray
)
_LETTERS = {"I": "INFO", "D": "DEBUG", "W": "WARNING", "E": "ERROR", "F": "FATAL", "C": "CRITICAL"}
_COLLECTIVES = re.compile(r"\b[NRHM]CCL\s+$")
"""Libraries of collectives report their errors as warnings, and what led to them as information."""
_PYTHON_WARNING = re.compile(r"\s*(?:[\w./<>-]+:(?:\d+:)? )?\w*Warning: ")
_CALLED_WARNING = re.compile(r"\s*(?:[\w.:/-]{1,40} )?warning: ", re.IGNORECASE)
"""How native libraries and shells begin what they warn of; it can be the reason of a failure below."""
_KILLED = re.compile(r"(?!.{0,400}?\bcould\b).{0,400}?\b(?:killed|died|crashed|death signal|via signal)\b")
"""Ray and torchrun warn of processes that they ended, too; Ray also of what could have died."""
_TRIED_AGAIN = re.compile(r".{0,400}?\b(?:[Rr]etrying(?! failed)|[Ww]ill (?:be )?retr(?:y|ied))\b")
_GONE_ON = re.compile(
    r"(?:^|[.,;:)] |-- ?|- |=> ?|-> ?)"
    r"(?i:(?:proceeding|continuing) (?:without|anyway)|(?:falling|fall|falls) back (?:to|on)|"
    r"(?:is |was |will be )?ignored|(?:\w+ ){0,3}will be (?:deleted|dropped|skipped|removed)|ignoring it|"
    r"(?:skipped|skipping)(?= it| this|\W*$)|using \S{1,40} instead)\b"
)
"""What follows on the same line: the program has dealt with it."""

_EXCEPTION_SHOWN = re.compile(r".{0,100}?\W(?:INFO|DEBUG)\W{1,10}(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception): \S")

_SETTING = re.compile(
    r"(?:(?P<named>[A-Za-z_][\w.-]{0,60}) ?=|[\"'](?P<keyed>[\w.-]{1,60})[\"']\s?:|^[\s-]*(?P<listed>[\w.-]{1,60}):)"
    r"\s{0,3}[frb]?(?P<quote>[\"'])"
)
_SAYING = re.compile(
    r"(?i)(?:.*[_.-])?(?:messages?|msg|errors?|err|errors?_?msg|details?|reasons?|exceptions?|exc|stderr|stdout|text|"
    r"output|outputs|traceback|status|event|log|cause|causes|description|info|what|response|result|body|title|hint|line)"
)
"""Names of fields in which programs report what happened; any other one is a setting."""
_MODEL_TEXT = re.compile(
    r"\W{0,3}\[(?:prompt|response|ground_truth|question|answer|completion|solution|input|output|generated_text)s?\]"
    r"|.{0,200}?(?:<\|im_start\|>|<\|im_end\|>|<think>|</think>|<\|assistant\|>|<\|user\|>)"
)
_EXCERPT = re.compile(r"\w ?[:=] ?['\"][^'\"]{0,40}<(?:think|\|).*(?:\\n|['\"][\])}]*\s*$)")
"""A text that ends on its line: in quotes behind its name, and its line breaks are written out."""
_TABLE_ROW = re.compile(r"\s*[│┃].*[│┃]\s*$")
"""What stands in a frame that is drawn: samples in a table, variables beside a traceback."""
_MODEL_TEXT_LINE = re.compile(r"(?i)\W{0,3}(?:prompt|question|completion|generat(?:ed|ion)(?: text)?)s?\W{0,2}: ")
"""What is quoted on one line of samples that trainers show."""
_MODEL_TEXT_ENDS = re.compile(r"\W{0,3}\[(?:score|reward|ground_truth|acc|extra_info)s?\]|.{0,200}?<\|endoftext\|>")
MODEL_TEXT_LINES = 60


def level_of(text: str) -> str:
    """The level that a line's own logger gives it, in capitals; empty where it gives none."""
    if letter := _LETTER.match(text):
        return _LETTERS[letter["glog"] or letter["ray"]]
    field = _LEVEL_FIELD.search(text[:_LEVEL_WITHIN])
    word = _LEVEL.search(text[:_LEVEL_WITHIN])
    if field is None and word and _COLLECTIVES.search(text[: word.start()]):
        return ""
    if found := field or (word if word and _is_header(text[: word.start()]) else None):
        said = found["word"].upper()
        return "WARNING" if said == "WARN" else said
    return ""


def is_fatal_letter(text: str) -> bool:
    """Whether a native logger wrote a line with the letter after which it aborts its process: C in Ray, F in glog."""
    found = _LETTER.match(text)
    return found is not None and (found["glog"] == "F" or found["ray"] == "C")


def _is_header(before: str) -> bool:
    names = _WORD_BEFORE.findall(before)
    return len(names) <= _WORDS_BEFORE and not any("Error" in name or "Exception" in name for name in names)


def is_tried_again(text: str) -> bool:
    """Whether a line says that something is tried again."""
    return bool(_TRIED_AGAIN.match(text))


def is_warning(text: str) -> bool:
    """Whether a clean line is one that its own logger calls a warning, or says that something is tried again, or that
    the program goes on without it."""
    if is_tried_again(text) or _GONE_ON.search(text):
        return True
    if _PYTHON_WARNING.match(text):
        return True
    letter = _LETTER.match(text)
    if letter and _KILLED.match(text[letter.end() :]):
        return False
    return level_of(text) == "WARNING"


def says_gone_on(text: str) -> bool:
    """Whether a line says that the program goes on without what has failed."""
    return bool(_GONE_ON.search(text))


def is_called_warning(text: str) -> bool:
    """Whether a line is a warning to whoever wrote it, also where it begins with that word alone."""
    return is_warning(text) or bool(_CALLED_WARNING.match(text))


def is_information(text: str) -> bool:
    """Whether a clean line is one that its own logger calls an information, or less; not where a logger has written
    down the output of a program, and what it says begins with the name of an exception."""
    return level_of(text) in ("INFO", "DEBUG", "TRACE", "NOTICE") and not _EXCEPTION_SHOWN.match(text)


def is_setting(text: str, at: int) -> bool:
    """Whether the words at a place are the value of a setting that is printed, in quotes behind its name."""
    open_ones = (
        found["named"] or found["keyed"] or found["listed"]
        for found in _SETTING.finditer(text, 0, at)
        if found["quote"] not in text[found.end() : at].replace("\\" + found["quote"], "")
    )
    outermost = next(open_ones, None)
    return outermost is not None and not _SAYING.fullmatch(outermost)


def is_line_of_model(text: str) -> bool:
    """Whether a line quotes a prompt or a response behind its title, or in the row of a table."""
    return bool(_MODEL_TEXT_LINE.match(text) or _TABLE_ROW.match(text))


def begins_model_text(text: str) -> bool:
    """Whether a line begins the text of a prompt or a response, as trainers print samples; not where it only quotes the
    head of one."""
    return bool(_MODEL_TEXT.match(text)) and not _EXCERPT.search(text)


def ends_model_text(text: str) -> bool:
    """Whether a line comes after such a text: what a trainer prints under it, or a line of a logger."""
    return bool(_MODEL_TEXT_ENDS.match(text) or level_of(text))
