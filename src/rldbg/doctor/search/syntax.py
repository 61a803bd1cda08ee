"""The structure of a regular expression: what follows what, what is repeated, and between what there is a choice.

Only for expressions that `re.compile` accepts, and only as fine as safety and anchors need it.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


class Literal(NamedTuple):
    character: str


class CharacterClass(NamedTuple):
    r"""One character of several; `narrow` ones (digits, few letters) end at the next word, `.` and `\S` do not."""

    narrow: bool


class BackReference(NamedTuple):
    """Text that was matched before, or a choice that depends on it."""


class Alternation(NamedTuple):
    alternatives: tuple["RegexSequence", ...]


class RegexGroup(NamedTuple):
    body: "RegexSequence"


class LookAround(NamedTuple):
    body: "RegexSequence"
    behind: bool


class Repeat(NamedTuple):
    low: int
    high: float
    """Infinite where nothing limits it."""
    body: "RegexSequence"


RegexNode = Literal | CharacterClass | BackReference | Alternation | RegexGroup | LookAround | Repeat
RegexSequence = tuple[RegexNode, ...]

_QUANTIFIER = re.compile(r"(?:(?P<sign>[*+?])|\{(?P<exact>\d+)\}|\{(?P<low>\d*),(?P<high>\d*)\})[?+]?")
_GROUP = re.compile(
    r"\((?:(?P<comment>\?#[^)]*\))|(?P<reference>\?P=\w+\))|(?P<condition>\?\(\w+\))|(?P<look>\?<?[=!])|(?P<bare>\?:)"
    r"|(?P<flags>\?[aiLmsux]+\))|\?(?:P<\w+>|>|[aiLmsux]*(?:-[imsx]+)?:)|)"
)
_CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEXADECIMAL = {"x": 2, "u": 4, "U": 8}
_NARROW_RANGE = 11


@lru_cache(maxsize=4096)
def parsed(source: str) -> RegexSequence:
    """The structure of an expression that `re.compile` accepts."""
    return _Parser(source).alternatives()


@dataclass(slots=True)
class _Parser:
    source: str
    at: int = 0

    def alternatives(self) -> RegexSequence:
        """Everything up to the end of the group or of the source."""
        found = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            found.append(self._sequence())
        return found[0] if len(found) == 1 else (Alternation(tuple(found)),)

    def _sequence(self) -> RegexSequence:
        nodes: list[RegexNode] = []
        while self.at < len(self.source) and self._peek() not in "|)":
            item = self._item()
            if (quantifier := _QUANTIFIER.match(self.source, self.at)) is not None:
                self.at = quantifier.end()
                nodes.append(Repeat(*_bounds(quantifier), item))
            else:
                nodes += item
        return tuple(nodes)

    def _item(self) -> RegexSequence:
        """What a quantifier would apply to; empty for what has no width and for comments."""
        character = self._peek()
        if character == "(":
            return self._group()
        if character == "[":
            return (self._class(),)
        if character == "\\":
            return self._escape(in_class=False)
        self.at += 1
        if character in "^$":
            return ()
        return (CharacterClass(narrow=False) if character == "." else Literal(character),)

    def _group(self) -> RegexSequence:
        opening = _GROUP.match(self.source, self.at)
        assert opening is not None, "re.compile has accepted the expression"
        self.at = opening.end()
        if "x" in (opening["flags"] or ""):
            raise re.error("verbose expressions are not supported", self.source, opening.start())
        if opening["comment"] or opening["flags"]:
            return ()
        if opening["reference"]:
            return (BackReference(),)
        body = self.alternatives()
        self.at += 1
        if opening["condition"]:
            return (BackReference(), *body)
        if opening["look"]:
            return (LookAround(body, behind="<" in opening["look"]),)
        return body if opening["bare"] else (RegexGroup(body),)

    def _class(self) -> RegexNode:
        self.at += 1
        negated = self._peek() == "^"
        self.at += negated
        narrow, items, start = True, 0, self.at
        only: RegexNode | None = None
        while self._peek() != "]" or self.at == start:
            only = self._class_item()
            items += 1
            if isinstance(only, Literal) and self._peek() == "-" and self.source[self.at + 1] != "]":
                self.at += 1
                end = self._class_item()
                assert isinstance(end, Literal), "re.compile has accepted the expression"
                narrow = narrow and ord(end.character) - ord(only.character) < _NARROW_RANGE
                only = None
            narrow = narrow and (not isinstance(only, CharacterClass) or only.narrow)
        self.at += 1
        if items == 1 and isinstance(only, Literal) and not negated:
            return only
        return CharacterClass(narrow and not negated)

    def _class_item(self) -> RegexNode:
        if self._peek() == "\\":
            return self._escape(in_class=True)[0]
        self.at += 1
        return Literal(self.source[self.at - 1])

    def _escape(self, *, in_class: bool) -> RegexSequence:
        code = self.source[self.at + 1]
        self.at += 2
        if code in "dsDSwW":
            return (CharacterClass(narrow=code in "ds"),)
        if code in _CONTROL:
            return (Literal(_CONTROL[code]),)
        if code in _HEXADECIMAL:
            self.at += _HEXADECIMAL[code]
            return (Literal(chr(int(self.source[self.at - _HEXADECIMAL[code] : self.at], 16))),)
        if code == "N":
            self.at = self.source.index("}", self.at) + 1
            return (CharacterClass(narrow=True),)
        if code.isdigit():
            return self._number(code, in_class)
        if code == "b" and in_class:
            return (Literal("\b"),)
        return () if code in "AbBZ" else (Literal(code),)

    def _number(self, code: str, in_class: bool) -> RegexSequence:
        """An octal number (from 0, with three digits, or in a class), else a group's number."""
        octal = re.compile(r"[0-7]{1,3}" if in_class or code == "0" else r"[0-3][0-7]{2}").match(
            self.source, self.at - 1
        )
        if octal is not None:
            self.at = octal.end()
            return (Literal(chr(int(octal[0], 8))),)
        digits = re.compile(r"\d{1,2}").match(self.source, self.at - 1)
        assert digits is not None
        self.at = digits.end()
        return (BackReference(),)

    def _peek(self) -> str:
        return self.source[self.at : self.at + 1]


def _bounds(quantifier: re.Match[str]) -> tuple[int, float]:
    if quantifier["sign"]:
        return {"*": (0, float("inf")), "+": (1, float("inf")), "?": (0, 1)}[quantifier["sign"]]
    if quantifier["exact"]:
        return int(quantifier["exact"]), int(quantifier["exact"])
    return int(quantifier["low"] or 0), int(quantifier["high"]) if quantifier["high"] else float("inf")
