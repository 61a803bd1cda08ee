"""RUN/broker.lock: held by the broker of a run as long as its process exists, also while it is stopped or busy.

So there is at most one broker per run, and whether it is alive is known without asking it.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

FILE = "broker.lock"
_PATIENCE_S = 1.0


class TakenError(Exception):
    """Another process is the broker of this run."""


@contextlib.contextmanager
def broker_lock(run: Path) -> Iterator[None]:
    """Makes this process the run's broker; waits for those who only look. Raises TakenError."""
    descriptor = os.open(run / FILE, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while not _try(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise TakenError(f"{run} already has a broker")
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def is_held(run: Path) -> bool:
    """Whether the run has a broker process."""
    try:
        descriptor = os.open(run / FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _try(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _try(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
