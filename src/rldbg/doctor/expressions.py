"""Regular expressions as the knowledge writes them: safe to run on any input, and matched on wrapped text too.

Safe: no back-references, no look-behind, no nested repetition, at most two wide repetitions, and the text they are run
on is a few kilobytes at most; so the worst case is bounded by arithmetic, not by trust.
"""

import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

MAX_TEXT = 8192
"""No expression is ever run on more characters than this."""
_WIDE = 64
_MAX_WIDE = 2


class Expression:
    """A compiled expression in which a plain space stands for any white space or none."""

    __slots__ = ("_compiled", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self._compiled = _compiled(source)

    def search(self, text: str) -> re.Match[str] | None:
        return self._compiled.search(text[:MAX_TEXT])

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self._compiled.finditer(text[:MAX_TEXT])

    @staticmethod
    def checked(source: str) -> str:
        """The source itself, or ValueError when it is no expression or could take long."""
        try:
            tree = parsed(source)
            _compiled(source)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        wide = _count_wide(tree, inside_repeat=False)
        if wide > _MAX_WIDE:
            raise ValueError(f"{wide} wide repetitions (.*, \\S+ ...); at most {_MAX_WIDE} are allowed, use {{0,60}}")
        return source


@lru_cache(maxsize=4096)
def parsed(source: str) -> Any:
    """The syntax tree of an expression; an expression is looked at several times on its way into an index."""
    return sre_parser.parse(source)


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


def _count_wide(tree: Any, *, inside_repeat: bool) -> int:
    """How many repetitions can run over much text; refuses the constructs whose cost cannot be bounded."""
    wide = 0
    for op, argument in tree:
        if op in (sre.GROUPREF, sre.GROUPREF_EXISTS):
            raise ValueError("back-references are not allowed")
        if op in (sre.ASSERT, sre.ASSERT_NOT):
            if argument[0] < 0:
                raise ValueError("look-behind is not allowed")
            wide += _count_wide(argument[1], inside_repeat=inside_repeat)
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            _low, high, body = argument
            is_wide = high == sre.MAXREPEAT or high > _WIDE
            repeats = is_wide or high > 1
            if repeats and inside_repeat:
                raise ValueError("a repetition inside a repetition is not allowed")
            wide += int(is_wide and not _is_narrow_class(body)) + _count_wide(
                body, inside_repeat=inside_repeat or repeats
            )
        else:
            for part in _parts(op, argument):
                wide += _count_wide(part, inside_repeat=inside_repeat)
    return wide


def _is_narrow_class(body: Any) -> bool:
    r"""Digits, hexadecimals and the like end at the next word; `.` and `\S` run on."""
    if len(body) != 1:
        return False
    op, argument = body[0]
    return op is sre.LITERAL or (op is sre.IN and argument[0] != (sre.NEGATE, None) and _small(argument))


def _small(items: Any) -> bool:
    return all(
        (op is sre.CATEGORY and argument in (sre.CATEGORY_DIGIT, sre.CATEGORY_SPACE))
        or op is sre.LITERAL
        or (op is sre.RANGE and argument[1] - argument[0] < 11)
        for op, argument in items
    )


def _parts(op: Any, argument: Any) -> Iterator[Any]:
    if op is sre.SUBPATTERN:
        yield argument[3]
    elif op is sre.ATOMIC_GROUP:
        yield argument
    elif op is sre.BRANCH:
        yield from argument[1]
