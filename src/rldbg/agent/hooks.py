"""The agent's hooks in the interpreter. Hooks that were installed before still run."""

import atexit
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import Any

from . import async_tasks, collectives, values
from .arming import armed_runtime_env
from .choice import BreakpointConditions
from .crash import is_end_by_signal
from .identity import describe_process
from .imports import AfterImports
from .post_mortem import ENDS_PROCESS
from .process import Agent
from .ray_process import is_ray_worker, wait_for_far_node
from .settings import Settings, say
from .stacks import mark_as_ours
from .terminal import prompt_here

_ATTRIBUTE = "_rldbg_agent"


def find_agent() -> Agent | None:
    """The agent of this process. It hangs on `sys`, because the package may be loaded under two names at once:
    by path from the start-up hook, and as rldbg.agent by a program that imports rldbg."""
    agent: Agent | None = getattr(sys, _ATTRIBUTE, None)
    return agent


def start(settings: Settings | None = None) -> Agent | None:
    """Starts the agent of this process unless it has one; None when the process belongs to no run."""
    agent = find_agent()
    settings = settings or Settings.from_environment()
    if agent is not None or settings is None:
        return agent
    agent = Agent(settings)
    setattr(sys, _ATTRIBUTE, agent)
    # Expressions that debuggers evaluate here show their results through this module.
    setattr(sys, "_rldbg_values", values)  # noqa: B010 - mypy knows no such attribute
    setattr(sys, "_rldbg_async_tasks", async_tasks)  # noqa: B010
    if os.environ.get("PYTHONBREAKPOINT") != "0" and not settings.ray_breakpoints:
        _own_breakpoints(agent)
    uncaught = UncaughtExceptions(agent)
    uncaught.take()
    _own_thread_exceptions(agent)
    agent.said.watch_traceback(traceback)
    AfterImports(_watched(agent, settings, uncaught)).install()
    atexit.register(agent.finish)
    agent.start()
    return agent


def stop_without_a_run(frame: FrameType, **chosen: Any) -> None:
    """`rldbg.breakpoint` in a process without a run: the same selection, then the usual breakpoint()."""
    choice: BreakpointConditions | None = getattr(sys, "_rldbg_choice", None)
    if choice is None:
        choice = BreakpointConditions()
        setattr(sys, "_rldbg_choice", choice)  # noqa: B010 - mypy knows no such attribute
    if not choice.is_meant(frame, describe_process(Settings(run=Path()), {}), **chosen):
        return
    if sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
        prompt_here(frame)
    else:
        sys.breakpointhook()


def _own_breakpoints(agent: Agent) -> None:
    previous = sys.breakpointhook if sys.breakpointhook is not sys.__breakpointhook__ else None

    def breakpointhook(*args: Any, **kwargs: Any) -> None:
        agent.stop(sys._getframe(1))
        if previous is not None:
            previous(*args, **kwargs)

    sys.breakpointhook = breakpointhook


class UncaughtExceptions:
    """The excepthook of this process: first whatever is there already, then the agent's report.

    Call `take` again after another library has wrapped our hook. torch.distributed does, and prints what the hooks
    inside of its own have written only when they have returned: a process that waits at its exception would not show
    it.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._turn = 0

    def take(self) -> None:
        self._turn += 1
        turn, previous = self._turn, sys.excepthook

        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            previous(kind, error, trace)
            if turn == self._turn:
                _report(self._agent, error, "process")

        sys.excepthook = excepthook

    def take_after_init(self, module: ModuleType) -> None:
        """`module` is torch.distributed.distributed_c10d."""
        original = module.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self.take()
            self._agent.identify()
            return result

        module.init_process_group = init_process_group  # type: ignore[attr-defined]


def _own_thread_exceptions(agent: Agent) -> None:
    previous_in_thread = threading.excepthook

    def thread_excepthook(arguments: threading.ExceptHookArgs) -> None:
        previous_in_thread(arguments)
        if arguments.exc_value is not None:
            _report(agent, arguments.exc_value, "thread")

    threading.excepthook = thread_excepthook


def _own_child_exceptions(agent: Agent, module: ModuleType) -> None:
    """`module` is multiprocessing.process: it prints what leaves a child's function, and calls no excepthook."""
    original = module.BaseProcess._bootstrap

    @functools.wraps(original)
    def _bootstrap(process: Any, *args: Any, **kwargs: Any) -> Any:
        run = process.run
        numbered = f"{type(process).__name__}-{':'.join(map(str, process._identity))}"
        agent.process_name = "" if process.name == numbered else process.name

        def run_and_report() -> None:
            try:
                run()
            except BaseException as error:
                # This frame is not the program's.
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                ended_by = _ended_by(error)
                if isinstance(ended_by, Exception):
                    agent.said.keep(ended_by)
                _report(agent, ended_by, "child")
                raise
            finally:
                # Such a process runs nothing else at its end.
                agent.tell_said_at_end()

        process.run = run_and_report
        return original(process, *args, **kwargs)

    module.BaseProcess._bootstrap = _bootstrap


def _ended_by(error: BaseException) -> BaseException:
    """The exception at which a child has given up: torch.multiprocessing.spawn saves it for the parent, then exits."""
    gives_up = isinstance(error, SystemExit) and error.code not in (None, 0) and not error.__suppress_context__
    return error.__context__ or error if gives_up else error


def _report(agent: Agent, error: BaseException, where: str) -> None:
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit) or is_end_by_signal(error):
        return
    try:
        agent.crashed(error, where)
    except KeyboardInterrupt:
        if where not in ENDS_PROCESS:
            # Ray cancels tasks so.
            raise
        say("Ctrl-C ended the wait at the exception")
    except Exception as failure:  # noqa: BLE001 - a dying process must still die of its own cause
        say(f"the crash could not be recorded: {type(failure).__name__}: {failure}")


def _say_what_ray_opens(module: ModuleType) -> None:
    """Ray's own debugger listens on the node's address and requires no token; the user must know."""
    original = module._ensure_debugger_port_open_thread_safe

    def open_and_say() -> None:
        original()
        worker: Any = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
        address = f"{getattr(worker, 'node_ip_address', '?')}:{getattr(worker, 'debugger_port', '?')}"
        say("Task paused, waiting for debugger to attach...")
        say(f"Ray's own debugger listens at {address} without a token: anyone who can connect can run code here")

    module._ensure_debugger_port_open_thread_safe = open_and_say  # type: ignore[attr-defined]


def _watch_nodes(agent: Agent) -> None:
    agent.identify()
    watching = threading.Thread(target=wait_for_far_node, args=(agent.tell_far_nodes,), name="rldbg-nodes", daemon=True)
    mark_as_ours(watching).start()


def _watched(agent: Agent, settings: Settings, uncaught: UncaughtExceptions) -> dict[str, Callable[[ModuleType], None]]:
    """Third-party modules that are patched when the program imports them."""

    def ray_post_mortem(module: ModuleType) -> None:
        def post_mortem() -> None:
            error = sys.exc_info()[1]
            if error is not None:
                _report(agent, error, "task")

        module._post_mortem = post_mortem  # type: ignore[attr-defined]

    def uv_hook(module: ModuleType) -> None:
        # Under `uv run` Ray ignores RAY_RUNTIME_ENV_HOOK in favour of this function.
        original = module.hook
        module.hook = lambda runtime_env: armed_runtime_env(original(runtime_env))  # type: ignore[attr-defined]

    watched: dict[str, Callable[[ModuleType], None]] = {
        "ray._private.runtime_env.uv_runtime_env_hook": uv_hook,
        "multiprocessing.process": lambda module: _own_child_exceptions(agent, module),
        "logging": agent.said.watch_logging,
    }
    if settings.ray_breakpoints:
        watched["ray.util.debugpy"] = _say_what_ray_opens
    else:
        if is_ray_worker():
            # Ray calls its post-mortem function for a failed task only if this is set.
            os.environ["RAY_DEBUG_POST_MORTEM"] = "1"
        watched["ray.util.rpdb"] = ray_post_mortem

    def process_groups(module: ModuleType) -> None:
        agent.identify()
        uncaught.take_after_init(module)
        if settings.collective_timeout_s > 0:
            collectives.patient_groups(module, settings.collective_timeout_s)

    watched["torch.distributed.distributed_c10d"] = process_groups
    if not is_ray_worker():
        watched["ray._private.worker"] = lambda _module: _watch_nodes(agent)
        watched["megatron.core.parallel_state"] = lambda _module: agent.identify()
    return watched
