"""The requests that a client may send to the broker. One handler per connection; it knows which processes its client is
attached to."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rldbg.agent import Message, SelectionError, WireError, parse_selection
from rldbg.core import IncompleteDataError, RldbgError, UsageError
from rldbg.live.broker.breakpoint import Break
from rldbg.live.broker.debug_session import RESUMING
from rldbg.live.broker.processes import Process
from rldbg.live.broker.stacks import stack_of
from rldbg.live.broker.state import BrokerState

_CHOOSING = frozenset({"ps", "select", "attach", "pause", "continue", "stacks", "break_set"})
_REFRESH_S = 0.25
_PROFILE_S = 110.0
_EXEC_S = 2.0
# A request to resume has reached its process by then.
_RESUMED_S = 0.3


class ClientHandler:
    """Answers the requests of one client; `leave` releases what was held only for this client."""

    def __init__(self, state: BrokerState, name: str) -> None:
        self._state = state
        self._name = name
        self._attached: set[Process] = set()
        self._operations: dict[str, Callable[[Message], Awaitable[Any]]] = {
            "ps": self._ps,
            "select": self._select,
            "attach": self._attach,
            "detach": self._detach,
            "dap": self._dap,
            "resume": self._resume,
            "wait_stopped": self._wait_stopped,
            "pause": self._pause,
            "continue": self._continue,
            "break_set": self._break_set,
            "break_list": self._break_list,
            "break_clear": self._break_clear,
            "break_condition": self._break_condition,
            "stacks": self._stacks,
            "profile": self._profile,
            "clock": self._clock,
            "ending": self._ending,
            "shutdown": self._shutdown,
        }

    async def answer(self, op: str, body: Message) -> Any:
        operation = self._operations.get(op)
        if operation is None:
            raise UsageError(f"unknown request: {op!r}", "use the rldbg version that started the broker")
        if op in _CHOOSING:
            # The identity of a process may have changed: a Ray worker got an actor, a child its RANK.
            await self._state.refresh(timeout_s=_REFRESH_S)
        return await operation(body)

    async def leave(self) -> None:
        """The client has disconnected: stopped processes stay stopped; tracing ends in running ones."""
        for process in list(self._attached):
            await self._let_go(process)

    async def _let_go(self, process: Process) -> None:
        self._attached.discard(process)
        process.attached[self._name] -= 1
        process.attached += type(process.attached)()
        try:
            await self._state.sessions.release(process)
        except RldbgError:
            # The session ended while its last client left; there is nothing to release.
            return

    # Looking.

    async def _ps(self, body: Message) -> Message:
        everyone = [p for p in self._state.processes if body.get("all") or _is_of_interest(p)]
        external = self._state.external
        advice = list(external.advice) if external is not None and not everyone else []
        problems = self._state.sessions.files.problems
        return {"processes": [self._state.holds.facts(process) for process in everyone], "advice": [*advice, *problems]}

    async def _select(self, body: Message) -> Message:
        return {"processes": [process.to_dict() for process in self._chosen(body)]}

    def _chosen(
        self, body: Message, *, states: tuple[str, ...] = ("running", "stopped"), ended: bool = False
    ) -> list[Process]:
        try:
            selection = parse_selection(str(body.get("who") or "all"))
        except SelectionError as error:
            raise UsageError(str(error), "see `rldbg ps --help` for the grammar") from None
        every = self._state.processes.select(selection)
        named = [process for process in every if _is_of_interest(process) or (ended and process.said)]
        chosen = [process for process in named if ended or (process.state in states and process.is_alive)]
        if not chosen:
            there = ", ".join(p.who for p in self._state.processes if _is_of_interest(p)) or "none"
            what = states[0] if len(states) == 1 and named else "live"
            raise IncompleteDataError(f"{selection.text!r} matches no {what} process", f"processes: {there}")
        return chosen

    def _one(self, body: Message) -> Process:
        chosen = self._chosen(body)
        if len(chosen) > 1:
            names = ", ".join(process.who for process in chosen)
            raise UsageError(f"{body.get('who')!r} matches {len(chosen)} processes", f"select one of {names}")
        return chosen[0]

    async def _stacks(self, body: Message) -> Message:
        chosen = self._chosen(body, states=("running", "stopped", "crashed"), ended=True)
        stacks = await asyncio.gather(*(stack_of(process, self._state.processes, body) for process in chosen))
        return {"stacks": stacks}

    async def _profile(self, body: Message) -> Message:
        """Forwards a profiling request to the selected agents, or to all, and returns their answers."""
        everyone = [process for process in self._state.processes if process.agent is not None]
        chosen = self._chosen(body) if body.get("who") else everyone

        async def ask(process: Process) -> Message:
            about = {"who": process.who, "pid": process.facts.get("pid"), "host": process.facts.get("host")}
            if process.agent is None:
                return about | {"error": "no agent: only workers of an armed run can be profiled"}
            try:
                told = body | {"worker": process.role}
                answer: Message = await process.agent.request("profile", told, timeout_s=_PROFILE_S)
            except (WireError, TimeoutError) as error:
                return about | {"error": str(error) or f"no answer within {_PROFILE_S:g} s"}
            return about | answer

        return {"processes": await asyncio.gather(*(ask(process) for process in chosen))}

    async def _clock(self, _body: Message) -> Message:
        return {"wall_ns": time.time_ns()}

    # Debugging one process.

    async def _attach(self, body: Message) -> Message:
        """Joins a session, opened if need be; with `stop` a running process is paused."""
        process = self._one(body)
        try:
            with process.in_use():
                await self._state.sessions.settled(process)
                if process not in self._attached:
                    self._attached.add(process)
                    process.attached[self._name] += 1
        except asyncio.CancelledError:
            self._state.sessions.spawn(self._state.sessions.release_once_open(process))
            raise
        if body.get("stop") and process.stop is None:
            await self._state.sessions.pause(process, float(body.get("wait_s") or 10.0))
        return process.to_dict()

    async def _detach(self, body: Message) -> Message:
        chosen = {process.number for process in self._chosen(body, ended=True)}
        for process in [each for each in self._attached if each.number in chosen]:
            await self._let_go(process)
        return {"detached": sorted(chosen)}

    async def _dap(self, body: Message) -> Message:
        process = self._one(body)
        session = await self._state.sessions.settled(process)
        arguments = dict(body.get("arguments") or {})
        meant = [name for name in ("threadId", "frameId") if arguments.get(name) == "stopped"]
        if meant and session.stop is None:
            raise UsageError(f"{process.who} is running", "pause it: rldbg pause WHO")
        for name in meant:
            assert session.stop is not None
            arguments[name] = session.stop.thread_id if name == "threadId" else session.stop.frame_id
        return await session.request(str(body["command"]), arguments, float(body.get("limit_s") or 30.0))

    async def _resume(self, body: Message) -> Message:
        """One step or `continue`; then, with `wait_s`, until it stops again."""
        process, how = self._one(body), str(body["how"])
        if how not in RESUMING:
            raise UsageError(f"invalid way to resume: {how!r}")
        session = await self._state.sessions.settled(process)
        stops = session.stops
        await self._state.sessions.resume(process, how, **dict(body.get("arguments") or {}))
        if body.get("wait_s"):
            await process.wait_until(
                lambda: session.stops != stops or session.ended.is_set() or process.declared is not None,
                float(body["wait_s"]),
            )
        return process.to_dict()

    async def _wait_stopped(self, body: Message) -> Message:
        process = self._one(body)
        await process.wait_until(
            lambda: not process.is_alive or process.is_standing,
            float(body.get("wait_s") or 30.0),
        )
        return process.to_dict()

    # Many processes.

    async def _pause(self, body: Message) -> Message:
        return await self._each(self._chosen(body, states=("running",)), self._state.sessions.pause)

    async def _continue(self, body: Message) -> Message:
        async def let_go(process: Process) -> None:
            if process.stop is None:
                await self._state.sessions.cancel_pause(process)
            else:
                await self._state.sessions.resume(process, "continue")

        everyone = self._chosen(body)
        pausing = [process for process in everyone if process.is_pausing]
        stopped = [process for process in everyone if process.stop is not None]
        return await self._each([*stopped, *pausing] or self._chosen(body, states=("stopped",)), let_go)

    async def _each(self, chosen: list[Process], act: Callable[[Process], Awaitable[None]]) -> Message:
        async def attempt(process: Process) -> Message:
            try:
                await act(process)
            except (RldbgError, WireError, TimeoutError) as error:
                return process.to_dict() | {"ok": False, "error": str(error)}
            return self._state.holds.facts(process) | {"ok": True}

        return {"processes": await asyncio.gather(*(attempt(process) for process in chosen))}

    async def _break_set(self, body: Message) -> Message:
        try:
            # Several lines of a file are given to the process at once.
            wanted = [{**body, "line": line} for line in body.get("lines") or ()] or [body]
            made = self._state.sessions.breaks.add_all(wanted)[0]
        except SelectionError as error:
            raise UsageError(str(error), "see `rldbg break --help` for the grammar") from None
        await self._apply_everywhere()
        return self._shown(made)

    async def _break_list(self, _body: Message) -> Message:
        log = self._state.sessions.log_points
        table = self._state.sessions.breaks
        breaks = [self._shown(each) for each in table.all() if not each.step]
        return {"breaks": breaks, "last_id": table.last_id, "log_file": str(log.path), "log": log.recent()}

    async def _break_clear(self, body: Message) -> Message:
        removed = self._state.sessions.breaks.clear([int(number) for number in body.get("ids") or []])
        await self._apply_everywhere()
        alive = [process for process in self._state.processes if process.is_alive]
        await asyncio.gather(*(self._state.sessions.release(process) for process in alive))
        return {"cleared": [each.number for each in removed]}

    async def _break_condition(self, body: Message) -> Message:
        changed = self._state.sessions.breaks.set_condition(int(body["id"]), str(body.get("condition") or ""))
        await self._apply_everywhere()
        return self._shown(changed)

    def _shown(self, each: Break) -> Message:
        """Without idle pooled workers: the breakpoint is set there too, but users do not know them."""
        facts = each.to_dict()
        idle = {process.who for process in self._state.processes if process.facts.get("idle")}
        return facts | {"set_in": {who: ok for who, ok in facts["set_in"].items() if who not in idle}}

    async def _apply_everywhere(self) -> None:
        alive = [process for process in self._state.processes if process.is_alive]
        await asyncio.gather(*(self._state.sessions.apply_breaks(process) for process in alive))

    async def _ending(self, body: Message) -> Message:
        """The run was asked to end, by a signal that may not have reached all of its hosts. It does not wait for those
        that are held to have gone: a program that ends with its exception may take its time."""
        held = self._state.holds.run_is_to_end(str(body.get("signal")))
        sessions = self._state.sessions
        if resuming := [sessions.spawn(sessions.resume(process, "continue")) for process in held]:
            await asyncio.wait(resuming, timeout=_RESUMED_S)
        return {"resumed": [process.who for process in held]}

    async def _shutdown(self, _body: Message) -> Message:
        self._state.stopping.set()
        return {"stopping": True}


def _is_of_interest(process: Process) -> bool:
    """Without idle pooled workers, helpers that ended normally, and forks that immediately executed another program."""
    if process.facts.get("idle"):
        return False
    if process.helps is not None and process.crash is None and process.ended_at is not None:
        return not process.said_goodbye and process.ended_at - process.arrived_at > _EXEC_S
    return process.ended_at is None or process.crash is not None or not process.said_goodbye
