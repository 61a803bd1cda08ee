"""The one thread that computes. Jobs run in the order they were handed over; each ends its operation, whatever happens.

Model state is touched by this thread alone, the service's own state by the event loop alone.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from rldbg.training_service.errors import InternalError, ServiceRequestError
from rldbg.training_service.operations import Operation

_log = logging.getLogger(__name__)


class Worker:
    """One thread, and the jobs that wait for it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "compute")

    def submit(self, operation: Operation, job: Callable[[], Any]) -> None:
        """To be called on the event loop; the outcome comes back to it."""
        done = asyncio.get_running_loop().run_in_executor(self._thread, _outcome, operation, job)
        done.add_done_callback(lambda finished: finished.result()())

    def close(self) -> None:
        """Lets the jobs that wait finish, then ends the thread."""
        self._thread.shutdown()


def _outcome(operation: Operation, job: Callable[[], Any]) -> Callable[[], None]:
    """Runs a job, unless it was cancelled; what it came to, to be told on the event loop."""
    if operation.done:
        return lambda: None
    try:
        return partial(operation.succeed, job())
    except ServiceRequestError as error:
        return partial(operation.fail, error)
    except Exception as error:  # noqa: BLE001 - a failing request must not end the service
        _log.exception("%s %s failed", operation.kind, operation.id)
        return partial(operation.fail, InternalError(f"{type(error).__name__}: {error}"))
