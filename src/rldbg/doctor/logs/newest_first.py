"""Logs whose newest lines come first, as viewers of logs of clusters export them: they are read from their end."""

import io
import re
from itertools import pairwise

from rldbg.core import Finding, Severity

_STAMPED = re.compile(rb"[A-Z\[(]{0,12}[ \t]*(?P<moment>20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)")
_ENOUGH_STAMPS = 5
_LARGEST_BYTES = 1 << 24


class TurnedLog(io.BytesIO):
    """The lines of a log the other way round; what has no stamp stays below the line above it, which it belongs to."""

    def __init__(self, data: bytes) -> None:
        records: list[list[bytes]] = []
        for line in data.splitlines():
            if records and not _STAMPED.match(line):
                records[-1].append(line)
            else:
                records.append([line])
        super().__init__(b"\n".join(line for record in reversed(records) for line in record) + b"\n")


def is_newest_first(head: bytes, size: int) -> bool:
    """Whether the stamps at the beginning of a log only fall, and it is small enough to be turned as a whole."""
    moments = [found["moment"] for line in head.splitlines() if (found := _STAMPED.match(line))]
    if size > _LARGEST_BYTES or len(set(moments)) < _ENOUGH_STAMPS:
        return False
    return all(later >= earlier for later, earlier in pairwise(moments))


def finding_of(name: str) -> Finding:
    cause = "it was read from its end, so that the numbers of its lines are counted from there"
    return Finding("newest-first", Severity.INFO, name, ("its newest lines come first",), cause, ())
