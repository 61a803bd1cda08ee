"""The one thread that computes. Jobs run in the order they were handed over; each ends its operation, whatever happens.

Model state is touched by this thread alone, the service's own state by the event loop alone.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from rldbg.training_service.errors import InternalError, RequestError
from rldbg.training_service.operations import Operation

_log = logging.getLogger(__name__)


class Worker:
    """A queue of jobs and the thread that takes them one by one."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Operation, asyncio.AbstractEventLoop] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation, job: Callable[[], Any]) -> None:
        """To be called on the event loop; the outcome comes back to it."""
        self._jobs.put((job, operation, asyncio.get_running_loop()))

    def close(self) -> None:
        """Lets the jobs that wait finish, then ends the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, operation, loop = item
            if operation.done:
                continue
            finish = _outcome(operation, job)
            try:
                loop.call_soon_threadsafe(finish)
            except RuntimeError:
                return  # the event loop is closed: the service is going down and nobody waits for the outcome


def _outcome(operation: Operation, job: Callable[[], Any]) -> Callable[[], None]:
    """Runs a job; what it came to, to be told on the event loop."""
    try:
        return partial(operation.succeed, job())
    except RequestError as error:
        return partial(operation.fail, error)
    except Exception as error:  # noqa: BLE001 - a failing request must not end the service
        _log.exception("%s %s failed", operation.kind, operation.id)
        return partial(operation.fail, InternalError(f"{type(error).__name__}: {error}"))
