"""Selects processes: one grammar for every verb and for `rldbg.breakpoint(ranks=...)`.

all                 every process
0   1,3   0:8:2     ranks, a list of ranks, a slice of ranks (stop exclusive)
policy/0  policy/1,3   ranks of one role
*policy*            names, as shell patterns, matched against role and full name
dp=0,tp=1:3         parallel coordinates: all of them must hold; dp=(1,3) is a list
@4242               a process id
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

_NUMBERS = re.compile(r"\d*(?::\d*){0,2}")
_TERM = re.compile(r"(?:\([^)]*\)|[^,])+")


class SelectionError(ValueError):
    """Text that is not a selection; says which part is wrong."""


@dataclass(frozen=True)
class Subject:
    """What a selection looks at in one process."""

    who: str
    role: str
    rank: int | None = None
    coordinates: Mapping[str, int] = field(default_factory=dict)
    pid: int = 0
    # What it was called before; no pattern matches it.
    former: str = ""


@dataclass(frozen=True)
class _Ranks:
    numbers: range | frozenset[int]
    role: str = "*"

    def matches(self, subject: Subject) -> bool:
        return subject.rank is not None and subject.rank in self.numbers and fnmatchcase(subject.role, self.role)


@dataclass(frozen=True)
class _Name:
    pattern: str

    def matches(self, subject: Subject) -> bool:
        names = (subject.role, subject.who)
        return self.pattern == subject.former or any(fnmatchcase(name, self.pattern) for name in names)


@dataclass(frozen=True)
class _Place:
    wanted: tuple[tuple[str, range | frozenset[int]], ...]

    def matches(self, subject: Subject) -> bool:
        return all(subject.coordinates.get(axis, -1) in numbers for axis, numbers in self.wanted)


@dataclass(frozen=True)
class _Pid:
    pid: int

    def matches(self, subject: Subject) -> bool:
        return subject.pid == self.pid


@dataclass(frozen=True)
class Selection:
    """A parsed selection: a process is meant when any of its terms matches."""

    text: str
    terms: tuple[_Ranks | _Name | _Place | _Pid, ...]

    def matches(self, subject: Subject) -> bool:
        return any(term.matches(subject) for term in self.terms)


def parse_selection(text: str) -> Selection:
    terms: list[_Ranks | _Name | _Place | _Pid] = []
    place: list[tuple[str, range | frozenset[int]]] = []
    role = "*"
    for part in (match.strip() for match in _TERM.findall(text)):
        if not part:
            continue
        if part == "all":
            terms.append(_Name("*"))
        elif part.startswith("@"):
            terms.append(_Pid(_whole(part[1:], part)))
        elif "=" in part:
            axis, _, numbers = part.partition("=")
            place.append((axis.strip(), _numbers(numbers.strip())))
        elif _is_numbers(part):
            terms.append(_Ranks(_numbers(part), role))
        elif "/" in part and _is_numbers(part.rpartition("/")[2]):
            role, _, numbers = part.rpartition("/")
            terms.append(_Ranks(_numbers(numbers), role))
        else:
            terms.append(_Name(part))
    if place:
        terms.append(_Place(tuple(place)))
    if not terms:
        raise SelectionError(f"{text!r} selects nothing: use `all`, `0`, `0:8:2`, `policy/0`, `*policy*`, `dp=0,tp=1`")
    return Selection(text, tuple(terms))


def _is_numbers(text: str) -> bool:
    return bool(text) and (text[0].isdigit() or text[0] in ":(")


def _numbers(text: str) -> range | frozenset[int]:
    if text.startswith("(") and text.endswith(")"):
        return frozenset(_whole(item.strip(), text) for item in text[1:-1].split(",") if item.strip())
    if not _NUMBERS.fullmatch(text) or not text:
        raise SelectionError(f"{text!r} is neither a number nor a slice such as 0:8:2")
    if ":" not in text:
        return frozenset({int(text)})
    start, stop, step = (*(int(item) if item else None for item in text.split(":")), None)[:3]
    if step == 0:
        raise SelectionError(f"{text!r} has a step of 0")
    return range(start or 0, 2**31 if stop is None else stop, step or 1)


def _whole(text: str, whole: str) -> int:
    if not text.isdigit():
        raise SelectionError(f"{whole!r} is not an integer")
    return int(text)
