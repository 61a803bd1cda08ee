"""Long-running work (check, compare, metrics): started once per request, and polled until it is done."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

_KEPT = 64
_THREADS = 2
_PATIENCE_S = 0.4
# A client that has not polled for this long has left.
_LEFT_S = 10.0


@dataclass(slots=True)
class _Job:
    stamp: Hashable
    future: Future[Any]
    began: float
    asked: float
    is_told: bool = False

    def answers(self, stamp: Hashable, now: float) -> bool:
        """Also with another stamp while the work runs, and once more for clients that waited for it.

        A recording that grows while it is read would else never be answered, and its work would pile up.
        """
        is_waited_for = not self.is_told and now - self.asked < _LEFT_S
        return self.stamp == stamp or not self.future.done() or is_waited_for


class Jobs:
    """Answers by question. What was answered stays until the question's stamp changes, or many others came since."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="rldbg-ui-job")
        self._jobs: OrderedDict[Hashable, _Job] = OrderedDict()
        self._lock = threading.Lock()

    def ask(
        self, question: Hashable, stamp: Hashable, work: Callable[[], Any], patience_s: float = _PATIENCE_S
    ) -> dict[str, Any]:
        """{"state": "done", "result": ...}, or {"state": "running", "seconds": ...}; an error of the work is raised."""
        job = self.begin(question, stamp, work)
        if not wait([job.future], patience_s).done:
            return {"state": "running", "seconds": time.monotonic() - job.began}
        job.is_told = True
        return {"state": "done", "result": job.future.result()}

    def begin(self, question: Hashable, stamp: Hashable, work: Callable[[], Any]) -> _Job:
        """Begins the work unless it is under way or was done with this stamp."""
        with self._lock:
            now = time.monotonic()
            job = self._jobs.get(question)
            if job is None or not job.answers(stamp, now):
                job = self._jobs[question] = _Job(stamp, self._pool.submit(work), began=now, asked=now)
                while len(self._jobs) > _KEPT:
                    self._jobs.popitem(last=False)
            job.asked = now
            return job

    def is_running(self, question: Hashable) -> bool:
        with self._lock:
            job = self._jobs.get(question)
        return job is not None and not job.future.done()

    def known(self, question: Hashable) -> Any:
        """The answer if there is one already; None while it is worked on, or where the work failed."""
        with self._lock:
            job = self._jobs.get(question)
        if job is None or not job.future.done() or job.future.cancelled() or job.future.exception() is not None:
            return None
        job.is_told = True
        return job.future.result()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
