"""Regular expressions as the knowledge writes them: safe to run on any input, and matched on wrapped text too.

Safe: no back-references, no look-behind, no nested repetition, at most two wide repetitions, and the text they are run
on is a few kilobytes at most; so the worst case is bounded.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from rldbg.doctor.search.syntax import (
    Alternation,
    BackReference,
    CharacterClass,
    Literal,
    LookAround,
    RegexGroup,
    RegexSequence,
    Repeat,
    parsed,
)

MAX_TEXT = 8192
"""No expression is ever run on more characters than this."""
_WIDE = 64
_MAX_WIDE = 2


class Expression:
    """An expression in which a plain space stands for any white space or none; compiled when it is first run."""

    __slots__ = ("source",)

    def __init__(self, source: str) -> None:
        self.source = source

    def search(self, text: str) -> re.Match[str] | None:
        return _compiled(self.source).search(text[:MAX_TEXT])

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return _compiled(self.source).finditer(text[:MAX_TEXT])

    @staticmethod
    def checked(source: str) -> str:
        """The source itself, or ValueError when it is not an expression or could take long."""
        try:
            re.compile(source)
            _compiled(source)
            tree = parsed(source)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        wide = _count_wide(tree, inside_repeat=False)
        if wide > _MAX_WIDE:
            raise ValueError(f"{wide} wide repetitions (.*, \\S+ ...); at most {_MAX_WIDE} are allowed, use {{0,60}}")
        return source


@lru_cache(maxsize=4096)
def _compiled(source: str) -> re.Pattern[str]:
    return re.compile(_loosened(source))


def _loosened(source: str) -> str:
    r"""Every bare space becomes `\s*`; spaces in character classes and escaped ones stay."""
    pieces: list[str] = []
    in_class = False
    index = 0
    while index < len(source):
        char = source[index]
        if char == "\\":
            pieces.append(source[index : index + 2])
            index += 2
            continue
        if char == "[" and not in_class:
            in_class = True
        elif char == "]" and in_class and source[index - 1] != "[":
            in_class = False
        if char == " " and not in_class:
            while index + 1 < len(source) and source[index + 1] in " ?*+":
                index += 1
            pieces.append(r"\s*")
        else:
            pieces.append(char)
        index += 1
    return "".join(pieces)


def _count_wide(tree: RegexSequence, *, inside_repeat: bool) -> int:
    """How many repetitions can run over much text; refuses the constructs whose cost cannot be bounded."""
    wide = 0
    for node in tree:
        match node:
            case BackReference():
                raise ValueError("back-references are not allowed")
            case LookAround(_, behind=True):
                raise ValueError("look-behind is not allowed")
            case LookAround(body) | RegexGroup(body):
                wide += _count_wide(body, inside_repeat=inside_repeat)
            case Alternation(alternatives):
                wide += sum(_count_wide(part, inside_repeat=inside_repeat) for part in alternatives)
            case Repeat(_, high, body):
                if high > 1 and inside_repeat:
                    raise ValueError("a repetition inside a repetition is not allowed")
                wide += int(high > _WIDE and not _is_narrow(body))
                wide += _count_wide(body, inside_repeat=inside_repeat or high > 1)
    return wide


def _is_narrow(body: RegexSequence) -> bool:
    return len(body) == 1 and (isinstance(body[0], Literal) or body[0] == CharacterClass(narrow=True))
