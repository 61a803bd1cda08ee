"""Work that takes long (check, compare, metrics): begun once per question, and asked for until it is done."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_KEPT = 64
_PATIENCE_S = 0.4


class Jobs:
    """Answers by question. What was answered stays until the question's stamp changes, or many others came since."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rldbg-ui-job")
        self._futures: OrderedDict[Hashable, tuple[Hashable, float, Future[Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def ask(
        self, question: Hashable, stamp: Hashable, work: Callable[[], Any], patience_s: float = _PATIENCE_S
    ) -> dict[str, Any]:
        """{"state": "done", "result": ...}, or {"state": "running", "seconds": ...}; an error of the work is raised."""
        _, began, future = self.begin(question, stamp, work)
        try:
            return {"state": "done", "result": future.result(patience_s)}
        except TimeoutError:
            if future.done():  # the work itself raised it
                raise
            return {"state": "running", "seconds": time.monotonic() - began}

    def begin(
        self, question: Hashable, stamp: Hashable, work: Callable[[], Any]
    ) -> tuple[Hashable, float, Future[Any]]:
        """Begins the work unless it was begun with this stamp: the stamp, when it began, and its answer to come."""
        with self._lock:
            known = self._futures.get(question)
            if known is None or known[0] != stamp:
                known = (stamp, time.monotonic(), self._pool.submit(work))
                self._futures[question] = known
                while len(self._futures) > _KEPT:
                    self._futures.popitem(last=False)
            return known

    def is_running(self, question: Hashable) -> bool:
        with self._lock:
            asked = self._futures.get(question)
        return asked is not None and not asked[2].done()

    def known(self, question: Hashable) -> Any:
        """The answer if there is one already; None while it is worked on, or where the work failed."""
        with self._lock:
            asked = self._futures.get(question)
        done = asked is not None and asked[2].done() and not asked[2].cancelled() and asked[2].exception() is None
        return asked[2].result() if asked is not None and done else None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
