"""Slurm's short form of node names: `node-12,node-[22,30],gpu[001-003],r[0-1]n[08-09]`."""

import re
from collections.abc import Iterator
from itertools import product

from rldbg.core import UsageError

_LARGEST = 100_000
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(nodelist: str) -> list[str]:
    """The names, in Slurm's order: left to right, the last bracket counting fastest; leading zeros are kept."""
    names: list[str] = []
    for part in _parts(nodelist.strip()):
        names.extend(_expand_part(part, nodelist))
        if len(names) > _LARGEST:
            raise UsageError(f"the node list has more than {_LARGEST} nodes", "give fewer nodes")
    return names


def _parts(nodelist: str) -> Iterator[str]:
    """Splits at the commas outside brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(nodelist):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif letter == "," and depth == 0:
            if part := nodelist[start:at].strip():
                yield part
            start = at + 1
        if depth not in (0, 1):
            raise _malformed(nodelist)
    if depth:
        raise _malformed(nodelist)
    if part := nodelist[start:].strip():
        yield part


def _expand_part(part: str, nodelist: str) -> Iterator[str]:
    pieces = _BRACKETS.split(part)
    texts, choices = pieces[::2], [_numbers(inside, nodelist) for inside in pieces[1::2]]
    if any(not text.replace("[", "").replace("]", "") == text for text in texts):
        raise _malformed(nodelist)
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > _LARGEST:
        raise UsageError(f"the node list has more than {_LARGEST} nodes", "give fewer nodes")
    for chosen in product(*choices):
        yield texts[0] + "".join(number + text for number, text in zip(chosen, texts[1:], strict=True))


def _numbers(inside: str, nodelist: str) -> list[str]:
    numbers: list[str] = []
    for item in inside.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise _malformed(nodelist)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= _LARGEST:
            raise _malformed(nodelist)
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers


def _malformed(nodelist: str) -> UsageError:
    return UsageError(f"not a Slurm node list: {nodelist!r}", "write it as squeue does, for example node-[1-4,7]")
