"""Runs episodes, many at once, and brings every one of them to an outcome: rows, a rejection, or a failure.

Invariants: outcomes are in the order of the episodes; an exception in the user's code never ends another episode;
nothing waits longer than its limit.
"""

from __future__ import annotations

import asyncio
import bdb
import contextvars
import json
import pdb
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from rldbg.core import Environment, RldbgError, redact, user_traceback
from rldbg.inference.workflows.adapters import Adapter
from rldbg.inference.workflows.completions import Trained
from rldbg.inference.workflows.data import EpisodeSpec
from rldbg.inference.workflows.deadlines import EpisodeBlocked, Watchdog, in_debugger, within
from rldbg.inference.workflows.episode import Episode
from rldbg.inference.workflows.outcome import EpisodeFailure, EpisodeOutcome
from rldbg.inference.workflows.results import BadResult

_MOST_DATA = 2000
_LEFTOVER_S = 2.0


@dataclass(frozen=True, slots=True)
class EpisodeObserver:
    """Progress callbacks: servers that are waited for, the number of episodes, each outcome, and a debugger prompt
    opening or closing."""

    on_wait: Callable[[str], None] = lambda _: None
    on_start: Callable[[int], None] = lambda _: None
    on_outcome: Callable[[EpisodeOutcome], None] = lambda _: None
    on_pause: Callable[[bool], None] = lambda _: None


class Runner:
    def __init__(
        self,
        adapter: Adapter,
        *,
        make_episode: Callable[[EpisodeSpec], Episode],
        command_of: Callable[[EpisodeSpec], str],
        concurrency: int,
        timeout_s: float,
        debugger: bool = False,
        observer: EpisodeObserver | None = None,
    ) -> None:
        self._adapter = adapter
        self._make_episode = make_episode
        self._command_of = command_of
        self._concurrency = 1 if debugger else concurrency
        self._timeout_s = timeout_s
        self._debugger = debugger
        self._observer = observer or EpisodeObserver()
        self._outcomes: dict[int, EpisodeOutcome] = {}
        self._left_by_user = False
        self.interrupted = False
        self.hung = False

    def run(
        self, specs: Sequence[EpisodeSpec], finish: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> list[EpisodeOutcome]:
        """Each episode's outcome, in order; one that never ran, after an interruption, has neither rows nor failure."""
        self._observer.on_start(len(specs))
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            with one_prompt(self._observer.on_pause):
                loop.run_until_complete(self._all(specs))
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            _leave(loop, finish)
            asyncio.set_event_loop(None)
        return [self._outcomes.get(place, EpisodeOutcome(spec)) for place, spec in enumerate(specs)]

    async def _all(self, specs: Sequence[EpisodeSpec]) -> None:
        todo = iter(enumerate(specs))
        async with Watchdog(self._timeout_s):
            await asyncio.gather(*(self._work(todo) for _ in range(min(self._concurrency, len(specs)))))
        self.interrupted = self._left_by_user

    async def _work(self, todo: Iterator[tuple[int, EpisodeSpec]]) -> None:
        for place, spec in todo:
            if self._left_by_user:
                return
            outcome = await self._episode(spec)
            self._outcomes[place] = outcome
            self._observer.on_outcome(outcome)

    async def _episode(self, spec: EpisodeSpec) -> EpisodeOutcome:
        episode = self._make_episode(spec)
        attempt = _Attempt(self._adapter, episode, on_error=self._on_error, in_line=self._concurrency == 1)
        try:
            await within(self._timeout_s, attempt.run(), is_paused=attempt.is_paused)
        except TimeoutError:
            attempt.time_out(self._timeout_s)
            self.hung = True
        rewards = [row.reward for row in attempt.rows or ()]
        failed = attempt.error is not None
        episode.timeline.finish({"reward": rewards[0] if len(set(rewards)) == 1 else rewards, "failed": failed})
        return EpisodeOutcome(
            spec,
            tuple(attempt.rows or ()),
            self._failure(spec, attempt) if failed else None,
            rejected=not failed and attempt.rows is None,
            timeline=episode.timeline,
        )

    def _on_error(self, error: BaseException) -> None:
        if isinstance(error, bdb.BdbQuit):
            self._left_by_user = True
        elif self._debugger and not isinstance(error, BadResult):
            post_mortem(error, self._observer.on_pause)

    def _failure(self, spec: EpisodeSpec, attempt: _Attempt) -> EpisodeFailure:
        error = attempt.error
        assert error is not None
        timed_out = isinstance(error, EpisodeTimeout | EpisodeBlocked)
        ours = isinstance(error, RldbgError)
        text = json.dumps(redact(dict(spec.row.data)), default=repr, ensure_ascii=False)
        return EpisodeFailure(
            sample=str(spec.sample),
            kind="timeout" if timed_out else "result" if isinstance(error, BadResult) else "exception",
            error=type(error).__name__,
            message=str(error),
            traceback="" if isinstance(error, BadResult) else attempt.where or user_traceback(error),
            data=text if len(text) <= _MOST_DATA else f"{text[:_MOST_DATA]} ... ({len(text)} characters)",
            command=self._command_of(spec),
            hint=error.hint if ours and isinstance(error, RldbgError) else "",
        )


class EpisodeTimeout(TimeoutError):
    """An episode took longer than it may."""


class _Attempt:
    """One call of the user's code: on this loop, in a thread, or in line in the main thread."""

    def __init__(
        self, adapter: Adapter, episode: Episode, *, on_error: Callable[[BaseException], None], in_line: bool
    ) -> None:
        self._adapter = adapter
        self._episode = episode
        self._on_error = on_error
        self._in_line = in_line
        self._thread: threading.Thread | None = None
        self.rows: list[Trained] | None = None
        self.error: BaseException | None = None
        self.where = ""

    async def run(self) -> None:
        try:
            with self._episode.active():
                result = await self._result()
                self.rows = None if result is None else self._adapter.rows(self._episode, result)
        except asyncio.CancelledError as error:
            self.where = user_traceback(error)
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
            self.error = error
            self._on_error(error)
        finally:
            self._adapter.close(self._episode)

    async def _result(self) -> Any:
        if not self._adapter.is_blocking:
            return await self._adapter.call(self._episode)
        if self._in_line:
            return self._adapter.call(self._episode)
        return await self._in_thread()

    async def _in_thread(self) -> Any:
        """A thread of its own, which ends with the process at the latest."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(result)

        def work() -> None:
            result, error = None, None
            try:
                result = context.run(self._adapter.call, self._episode)
            except (Exception, SystemExit) as raised:  # noqa: BLE001 - passed on to the episode
                error = RuntimeError(repr(raised)) if isinstance(raised, SystemExit | StopIteration) else raised
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        self._thread = threading.Thread(target=work, name=f"episode-{self._episode.sample}", daemon=True)
        self._thread.start()
        return await done

    def is_paused(self) -> bool:
        return self._thread is not None and self._thread.ident is not None and in_debugger(self._thread.ident)

    def time_out(self, limit_s: float) -> None:
        self.error = EpisodeTimeout(f"not done after {limit_s:g} s")
        if self._thread is not None and self._thread.ident is not None:
            frame = sys._current_frames().get(self._thread.ident)
            stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
            self.where = f"it is at (the thread cannot be stopped and is left running):\n{stack}".rstrip()
        self.where += f"\nnot done after {limit_s:g} s: raise --timeout, or see where it waits above"


def _leave(loop: asyncio.AbstractEventLoop, finish: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    """Ends what is left on the loop, without waiting for threads that the user's code may have started."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_LEFTOVER_S))
    if finish is not None:
        loop.run_until_complete(finish())
    loop.close()


class _OnePrompt(pdb.Pdb):
    """pdb that holds a lock from its first prompt until the user resumes the program."""

    def __init__(self, lock: threading.Lock, on_pause: Callable[[bool], None]) -> None:
        super().__init__(nosigint=True)
        self._lock = lock
        self._on_pause = on_pause
        self._held = False

    def interaction(self, *arguments: Any, **named: Any) -> None:
        self._take()
        super().interaction(*arguments, **named)

    def set_continue(self) -> None:
        super().set_continue()
        self._give_back()

    def set_quit(self) -> None:
        super().set_quit()
        self._give_back()

    def _take(self) -> None:
        if not self._held:
            self._lock.acquire()
            self._held = True
            self._on_pause(True)

    def _give_back(self) -> None:
        if self._held:
            self._held = False
            self._on_pause(False)
            self._lock.release()


@contextmanager
def one_prompt(on_pause: Callable[[bool], None] = lambda _: None) -> Iterator[None]:
    """`breakpoint()` is ours inside, unless the user has chosen a debugger; `on_pause` hears when a prompt opens."""
    if sys.breakpointhook is not sys.__breakpointhook__ or Environment().text("PYTHONBREAKPOINT"):
        yield
        return
    lock = threading.Lock()

    def stop(*_arguments: Any, **_named: Any) -> None:
        frame: FrameType = sys._getframe(1)
        _OnePrompt(lock, on_pause).set_trace(frame)

    sys.breakpointhook = stop
    try:
        yield
    finally:
        sys.breakpointhook = sys.__breakpointhook__


def post_mortem(error: BaseException, on_pause: Callable[[bool], None] = lambda _: None) -> None:
    """pdb where the exception was raised; returns when the user leaves it."""
    on_pause(True)
    try:
        pdb.post_mortem(error.__traceback__)
    finally:
        on_pause(False)
