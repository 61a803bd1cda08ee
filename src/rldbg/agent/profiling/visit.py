"""`rldbg profile --attach`: a tool in a process that runs already."""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..stacks import mark_as_ours
from .plan import ChosenWorker, Plan
from .window import ProfileWindow


class Visit:
    """One look at this process, for a number of seconds."""

    ATTRIBUTE = "_rldbg_profile_visit"

    def __init__(self, plan: Plan, worker: str, seconds: float) -> None:
        self._seconds = seconds
        agent: Any = getattr(sys, "_rldbg_agent", None)
        nothing: Callable[[], None] = lambda: None  # noqa: E731 - two empty callbacks
        self._window = ProfileWindow(
            plan, ChosenWorker(worker, ""), None, identity=agent.identity, opened=nothing, closed=nothing
        )

    @classmethod
    def begin(cls, body: dict[str, Any]) -> dict[str, Any]:
        running: Visit | None = getattr(sys, cls.ATTRIBUTE, None)
        if running is not None and running.state()["state"] in ("recording", "finishing"):
            raise ValueError("this process is already being profiled")
        plan = Plan(
            str(body["tool"]), ("*",), str(body["folder"]), str(body["books"]), options=dict(body.get("options") or {})
        )
        visit = cls(replace(plan, delay_s=0.0), str(body["worker"]), float(body["seconds"]))
        setattr(sys, cls.ATTRIBUTE, visit)
        visit._window.begin(torch_is_here=True)
        mark_as_ours(threading.Thread(target=visit._end, name="rldbg-visit", daemon=True)).start()
        return visit.state()

    def _end(self) -> None:
        time.sleep(self._seconds)
        self._window.finish()

    def state(self) -> dict[str, Any]:
        return self._window.facts()
