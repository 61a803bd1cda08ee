"""Strict order of a model's requests: number n+1 starts only after number n, whichever arrives first.

Invariant: every sequence number gets exactly one operation. The same request sent again gets the same operation;
another request under a number that is taken is refused. It lives on the event loop.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from rldbg.training_service.errors import ConflictError, SequenceGapError, ServiceRequestError
from rldbg.training_service.operations import Operation

_REMEMBERED = 4096
GAP_TIMEOUT_S = 120.0


@dataclass(slots=True)
class _Entry:
    digest: bytes
    operation: Operation
    start: Callable[[], None] | None


class RequestOrder:
    """The requests of one model, numbered from 1."""

    def __init__(self, *, gap_timeout_s: float = GAP_TIMEOUT_S) -> None:
        self.next = 1
        self._gap_timeout_s = gap_timeout_s
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    def submit(self, number: int, digest: bytes, operation: Operation, start: Callable[[], None] | None) -> Operation:
        """Starts the request when its turn has come. Without `start` it only takes its place (it was refused)."""
        known = self._entries.get(number)
        if known is not None:
            if known.digest == digest:
                return known.operation
            raise ConflictError(f"seq_id {number} was already used by another request of this model")
        if number < 1:
            raise ServiceRequestError(f"seq_id is {number}; a model's requests are numbered from 1")
        if number < self.next:
            raise ConflictError(f"seq_id {number} has passed; the next of this model is {self.next}")
        self._entries[number] = _Entry(digest, operation, start)
        self._advance()
        if number >= self.next:
            asyncio.get_running_loop().call_later(self._gap_timeout_s, self._give_up, number)
        return operation

    def _advance(self) -> None:
        while (entry := self._entries.get(self.next)) is not None:
            self.next += 1
            if entry.start is not None and not entry.operation.done:
                entry.start()
                entry.start = None
        while len(self._entries) > _REMEMBERED and next(iter(self._entries)) < self.next:
            self._entries.popitem(last=False)

    def _give_up(self, number: int) -> None:
        entry = self._entries.get(number)
        if entry is not None and number >= self.next:
            entry.operation.fail(
                SequenceGapError(
                    f"seq_id {number} waited {self._gap_timeout_s:g} s for seq_id {self.next}, which never came"
                )
            )


def digest_of(*parts: Any) -> bytes:
    """A request's content in few bytes, to tell a repetition from a clash."""
    hasher = blake2b(digest_size=16)
    for part in parts:
        hasher.update(part if isinstance(part, bytes) else json.dumps(part, sort_keys=True, default=str).encode())
        hasher.update(b"\0")
    return hasher.digest()


def sequence_number(body: Mapping[str, Any]) -> int:
    """The `seq_id` of a request."""
    number = body.get("seq_id")
    if isinstance(number, bool) or not isinstance(number, int):
        raise ServiceRequestError(f"seq_id is {number!r}; a model's requests are numbered from 1")
    return number
