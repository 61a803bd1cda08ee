"""A process of a profiled run: its phases are recorded, and if it is selected, a tool profiles it during the window.

Loaded by the start-up hook only where RLDBG_PROFILING is set, and by the agent when a running process is to be
profiled. `rldbg.step` and `rldbg.phase` find the object made here on `sys`, because the package may be loaded under two
names at once.
"""

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ..identity import describe_process
from ..imports import AfterImports
from ..settings import Settings, say
from ..stacks import mark_as_ours
from .actors import ActorSelection
from .broker_questions import BrokerGone, Questions
from .framework_hooks import FrameworkHooks
from .nsys import UnderNsys, choose_this_process, run_under_nsys
from .phases import BEFORE_STEPS, HookedFunction, Phases, nvtx_marks, torch_marks
from .plan import OWN_VARIABLES, ChosenWorker, Plan
from .status_file import is_open_inside, read_status_files
from .window import ProfileWindow, leave_step_marks, torch_is_imported

ATTRIBUTE = "_rldbg_profile"
_FINISH_S = 120.0
# Helpers that only ask for something end sooner.
_WORKED_S = 1.0


def begin() -> None:
    """At the start of a process of a profiled run, before the program's first line and before the agent's thread."""
    settings = Settings.from_environment()
    try:
        plan = Plan.from_environment()
    except (OSError, ValueError, TypeError, KeyError) as error:
        say(f"this process is not profiled: the plan cannot be read here: {error}")
        return
    if settings is None or hasattr(sys, ATTRIBUTE):
        return
    for name in OWN_VARIABLES:  # also those that the script itself has set
        os.environ.pop(name, None)
    if plan.tool == "nsys":
        run_under_nsys(plan)
    # Else torch's profiler writes two lines of its own into the training's output.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    profile = Profile(plan, settings, UnderNsys.here())
    setattr(sys, ATTRIBUTE, profile)
    profile.start()


def join(agent: Any) -> None:
    """The time that a process is stopped at a breakpoint is a phase too."""
    profile: Profile | None = getattr(sys, ATTRIBUTE, None)
    if profile is None or agent is None:
        return
    stop = agent.stop

    def stop_and_write(*args: Any, **kwargs: Any) -> None:
        with profile.span("pause"):
            stop(*args, **kwargs)

    agent.stop = stop_and_write


def _both(first: Callable[[ModuleType], None], then: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def act(module: ModuleType) -> None:
        first(module)
        then(module)

    return act


class Profile:
    """What this process does for the profile; `step` and `span` are its whole surface for the program."""

    def __init__(self, plan: Plan, settings: Settings, under: UnderNsys | None) -> None:
        self.plan = plan
        self._settings = settings
        self._under = under
        self._window: ProfileWindow | None = None
        self._choice: ChosenWorker | None = choose_this_process(plan)
        self._has_chosen = self._choice is not None
        self._number = BEFORE_STEPS
        self._started = time.monotonic()
        self._is_told = False
        self._selection = ActorSelection(plan, self._finish_others)
        self._phases = Phases(
            plan.state_folder, about=self._about, step=lambda: self._number, clock=self._measure_clock
        )
        self.span = self._phases.span

    def start(self) -> None:
        if self._choice is not None:
            self._phases.announce()
            self._make_window(self._choice)
        AfterImports(self._watched()).install()
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    # Steps.

    def step(self, number: int | None = None) -> None:
        """The program says which step begins; from then on optimizer steps no longer count."""
        self._is_told = True
        self._enter(max(self._number, 0) + 1 if number is None else number)

    def _own_steps(self) -> None:
        self._is_told = True

    def _optimizer_stepped(self) -> None:
        if not self._is_told:
            self._enter(max(self._number, 1) + 1)

    def _enter(self, number: int) -> None:
        if number == self._number:
            return
        self._number = number
        if not self._has_chosen:
            self._choose_late()
        leave_step_marks(self.plan, number)
        self._phases.say_clock()
        if self._window is not None:
            self._window.enter_step(number)

    def _choose_late(self) -> None:
        """A driver or a rank may have got its name after it was started."""
        self._has_chosen = True
        who = self._identity()
        names = [str(who["role"])] if who["rank"] is None else [str(who["role"]), f"{who['role']}/{who['rank']}"]
        choice = self.plan.choose(names) if who["kind"] != "task" else None
        if choice is not None and self.plan.tool != "nsys":
            self._make_window(choice)

    def _make_window(self, choice: ChosenWorker) -> None:
        if self.plan.tool == "phases" or (self.plan.tool == "nsys" and self._under is None):
            return
        self._window = ProfileWindow(
            self.plan,
            choice,
            self._under,
            identity=self._identity,
            opened=self._mark_phases,
            closed=self._unmark_phases,
        )
        self._window.begin(torch_is_here=torch_is_imported())

    # Phases.

    def _watched(self) -> dict[str, Callable[[ModuleType], None]]:
        hooks = FrameworkHooks(
            self.plan.hooks,
            self.plan.state_folder,
            wrap=lambda hook: HookedFunction(hook, span=self.span, enter_step=self.step, own=self._own_steps),
        )
        watched: dict[str, Callable[[ModuleType], None]] = dict.fromkeys(hooks.modules, hooks.imported)
        for name, action in (
            ("torch", self._torch_is_here),
            ("torch.nn.modules.module", self._watch_first_forward),
            ("torch.optim.optimizer", self._watch_optimizers),
            ("ray.actor", self._selection.watch_creation),
            ("ray", self._ray_is_here),
        ):
            watched[name] = _both(hooks.imported, action) if name in watched else action
        return watched

    def _ray_is_here(self, module: ModuleType) -> None:
        self._phases.announce()
        self._selection.watch_endings(module)

    def _torch_is_here(self, _module: ModuleType) -> None:
        self._phases.announce()
        if self._window is not None:
            self._window.begin(torch_is_here=True)
        if self._under is not None:
            self._phases.marks = nvtx_marks()

    def _watch_first_forward(self, module: ModuleType) -> None:
        """Counted by the optimizer, step 1 begins with the first forward pass; the hook that sees it removes itself."""

        def forward(*_: Any) -> None:
            handle.remove()
            if self._number == BEFORE_STEPS and not self._is_told:
                self._enter(1)

        handle = module.register_module_forward_pre_hook(forward)

    def _watch_optimizers(self, module: ModuleType) -> None:
        def before(*_: Any) -> None:
            if self._number == BEFORE_STEPS and not self._is_told:
                self._enter(1)
            span = self.span("optimizer")
            span.__enter__()
            under_way.append(span)

        def after(*_: Any) -> None:
            if under_way:
                under_way.pop().__exit__(None, None, None)
            self._optimizer_stepped()

        under_way: list[Any] = []

        original = module.Optimizer.__init__

        @functools.wraps(original)
        def __init__(*args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes the place of one
            if self._window is not None:
                self._window.expect_steps()
            original(*args, **kwargs)

        module.Optimizer.__init__ = __init__
        module.register_optimizer_step_pre_hook(before)
        module.register_optimizer_step_post_hook(after)

    def _mark_phases(self) -> None:
        if self.plan.tool == "torch":
            self._phases.marks = torch_marks()

    def _unmark_phases(self) -> None:
        if self.plan.tool == "torch":
            self._phases.marks = None

    def _measure_clock(self) -> tuple[int, int] | None:
        try:
            with Questions(self._settings) as broker:
                return broker.clock_offset()
        except BrokerGone:
            return None

    # Selection.

    def _identity(self) -> dict[str, Any]:
        agent: Any = getattr(sys, "_rldbg_agent", None)
        found: dict[str, Any] = agent.identity() if agent is not None else describe_process(self._settings, {})
        return found

    def _about(self) -> dict[str, Any]:
        who = self._identity()
        worker = self._choice.name if self._choice is not None else who["role"]
        known = {name: who[name] for name in ("role", "rank", "host", "pid", "kind")}
        return {"worker": worker, **known, "before_steps": BEFORE_STEPS}

    # Closing.

    def finish(self) -> None:
        """Whatever is open is closed and written. A process that has worked for a while without torch, Ray and phases
        (a server of rewards, an environment) is known by now."""
        if time.monotonic() - self._started >= _WORKED_S:
            self._phases.announce()
        if self._window is not None:
            self._window.finish()

    def is_actor(self, identifier: str) -> bool:
        worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
        return not identifier or getattr(getattr(worker, "actor_id", None), "hex", str)() == identifier

    def _finish_others(self, actor: str) -> None:
        """Before Ray ends workers, asks them to write their profiles. The wait is bounded, and skipped if no profile is
        open: a worker that hangs, and is killed for it, cannot answer."""
        if not any(is_open_inside(status) for status in read_status_files(Path(self.plan.state_folder))):
            return
        with contextlib.suppress(BrokerGone), Questions(self._settings) as broker:
            broker.ask("profile", {"action": "finish", "actor": actor}, timeout_s=_FINISH_S)

    def _after_fork_in_child(self) -> None:
        self._window = None
        self._has_chosen = True
        self._phases.forget_in_child()


class Visit:
    """`rldbg profile --attach`: a tool profiles this running process for some seconds."""

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
            str(body["tool"]),
            ("*",),
            str(body["folder"]),
            str(body["state_folder"]),
            options=dict(body.get("options") or {}),
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


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """The broker's requests: finish what is open; record this process for some seconds from now; how that went."""
    action = str(body.get("action"))
    profile: Profile | None = getattr(sys, ATTRIBUTE, None)
    if action == "finish":
        if profile is not None and profile.is_actor(str(body.get("actor") or "")):
            profile.finish()
        return {"finished": True}
    if action == "record":
        return Visit.begin(body)
    visit: Visit | None = getattr(sys, Visit.ATTRIBUTE, None)
    return visit.state() if visit is not None else {"state": "none"}
