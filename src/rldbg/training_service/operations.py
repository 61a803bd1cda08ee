"""Operations: work that was accepted and will have exactly one outcome, a result or an error.

They live on the event loop; the thread that computes hands outcomes over to it. Finished ones are kept until many
newer ones exist, so that a client may ask late and twice; results that were not fetched yet are kept longest.
"""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rldbg.training_service.errors import NotFoundError, ServiceRequestError

_KEPT = 1_000
_KEPT_UNFETCHED = 10_000


@dataclass(slots=True, eq=False)
class Operation:
    """One piece of accepted work. `present` turns its result into what the protocol that asked for it sends."""

    kind: str
    present: Callable[[Any], Any] = lambda result: result
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    result: Any = None
    error: ServiceRequestError | None = None
    fetched: bool = False
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> bool:
        return self.finished.is_set()

    @property
    def answer(self) -> Any:
        """The result in the form its protocol sends, fetched by this; an operation that failed has none."""
        self.fetched = True
        if self.error is not None:
            raise self.error
        return self.present(self.result)

    def succeed(self, result: Any) -> None:
        if not self.done:
            self.result = result
            self.finished.set()

    def fail(self, error: ServiceRequestError) -> None:
        if not self.done:
            self.error = error
            self.finished.set()

    def forget(self) -> None:
        """Frees the result; later requests for it get an error."""
        self.result, self.present = None, lambda _result: None
        self.error = NotFoundError(f"the result of {self.id} was forgotten; many newer ones exist")

    async def wait(self, timeout_s: float) -> bool:
        """Waits for the outcome, at most that long; returns whether it has come."""
        if not self.done and timeout_s > 0:
            try:
                await asyncio.wait_for(self.finished.wait(), timeout_s)
            except TimeoutError:
                return False
        return self.done

    async def outcome(self) -> Any:
        """Waits for the result, however long; an error is raised."""
        await self.finished.wait()
        if self.error is not None:
            raise self.error
        return self.result


class Operations:
    """All operations by id."""

    def __init__(self, kept: int = _KEPT, kept_unfetched: int = _KEPT_UNFETCHED) -> None:
        self._kept = kept
        self._kept_unfetched = kept_unfetched
        self._all: OrderedDict[str, Operation] = OrderedDict()

    def add(self, operation: Operation) -> Operation:
        self._all[operation.id] = operation
        if len(self._all) > self._kept:
            self._forget(lambda item: item.done and item.fetched)
        if len(self._all) > self._kept_unfetched:
            self._forget(lambda item: item.done)
        return operation

    def _forget(self, condition: Callable[[Operation], bool]) -> None:
        oldest = next((item for item in self._all.values() if condition(item)), None)
        if oldest is not None:
            self._all.pop(oldest.id).forget()

    def find(self, identifier: str) -> Operation | None:
        return self._all.get(identifier)

    def get(self, identifier: str) -> Operation:
        operation = self._all.get(identifier)
        if operation is None:
            raise NotFoundError(f"no operation {identifier!r}; a result is kept until {self._kept} newer ones exist")
        return operation
