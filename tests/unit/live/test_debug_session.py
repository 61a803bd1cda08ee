"""The broker's debug session: every stop is shown, whatever happens while its place is looked up."""

import asyncio
import contextlib
import gc
import time

import pytest

from rldbg.core import UsageError
from rldbg.live.broker.debug_session import HANDSHAKE_S, DebugSession
from rldbg.live.broker.debug_sessions import DebugSessions
from rldbg.live.broker.processes import Process


class _Debuggee:
    """Answers every request with an empty body, and refuses some; `stop` reports a stopped thread."""

    def __init__(self, refuses=()):
        self._messages = asyncio.Queue()
        self._refuses = refuses
        self.asked = []

    async def receive(self):
        return await self._messages.get()

    def send(self, message):
        self.asked.append(message["command"])
        success = message["command"] not in self._refuses
        self._messages.put_nowait({"type": "response", "request_seq": message["seq"], "success": success, "body": {}})

    def withdraw_answer(self):
        return self._messages.get_nowait()

    def answer(self, message):
        self._messages.put_nowait(message)

    def stop(self, thread):
        self._messages.put_nowait({"type": "event", "event": "stopped", "body": {"threadId": thread}})

    def close(self):
        pass


async def _session(prepare_stop=None, **options):
    debuggee, changed = _Debuggee(**options), asyncio.Event()
    session = DebugSession(debuggee, on_change=changed.set)
    session.prepare_stop = prepare_stop
    return debuggee, changed, session, asyncio.create_task(session.run())


def test_every_request_of_the_handshake_has_the_time_of_the_handshake():
    """Thirty-two ranks that stop at once on a busy host import their debuggers for longer than a request may take."""

    async def scene():
        _, _, session, running = await _session()
        patience, forward = {}, session.forward

        async def noted(command, arguments, timeout_s):
            patience[command] = timeout_s
            return await forward(command, arguments, timeout_s)

        session.forward = noted
        session._initialized.set()
        await session.attach(lambda _session: asyncio.sleep(0))
        running.cancel()
        return patience

    assert asyncio.run(scene()) == dict.fromkeys(("initialize", "attach", "configurationDone"), HANDSHAKE_S)


def test_a_second_stop_does_not_lose_the_work_on_the_first():
    async def scene():
        destroyed, prepared = [], []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: destroyed.append(context["message"]))

        async def prepare(_session, stop, _frames):
            prepared.append(stop.thread_id)
            if len(prepared) == 1:
                # Nothing but the task itself refers to what it waits for.
                await asyncio.get_running_loop().create_future()

        debuggee, changed, session, running = await _session(prepare)
        debuggee.stop(1)
        while not prepared:
            await asyncio.sleep(0)
        # WHEN another thread stops while the first is being looked up
        debuggee.stop(2)
        await asyncio.wait_for(changed.wait(), 10)
        gc.collect()
        running.cancel()
        return prepared, destroyed, session.stop.thread_id

    # THEN the second is shown and the first was not thrown away
    assert asyncio.run(scene()) == ([1, 2], [], 2)


def test_a_stop_is_shown_when_its_place_cannot_be_found(caplog):
    async def scene():
        async def prepare(_session, _stop, _frames):
            raise KeyError("stackFrames")

        debuggee, changed, session, running = await _session(prepare)
        debuggee.stop(7)
        await asyncio.wait_for(changed.wait(), 10)
        running.cancel()
        return session.stop.thread_id

    assert asyncio.run(scene()) == 7
    assert "stackFrames" in caplog.text


def test_a_jump_that_is_refused_changes_nothing():
    async def scene():
        debuggee, changed, session, running = await _session(refuses=["goto"])
        debuggee.stop(1)
        await asyncio.wait_for(changed.wait(), 10)
        before = session.stop
        # WHEN the debuggee refuses to jump
        with pytest.raises(UsageError):
            await session.request("goto", {"threadId": 1, "targetId": 1})
        # THEN the process is stopped where it was, values can be read, and it can be resumed
        assert session.stop is before and session.is_halting and not session.is_stepping
        await session.request("evaluate", {"expression": "1"})
        await session.request("continue", {"threadId": 1})
        assert session.stop is None and not session.is_halting
        running.cancel()
        return debuggee.asked[-2:]

    assert asyncio.run(scene()) == ["evaluate", "continue"]


def test_a_refused_jump_is_heard_when_its_client_has_left():
    async def scene():
        debuggee, changed, session, running = await _session(refuses=["goto"])
        debuggee.stop(1)
        await asyncio.wait_for(changed.wait(), 10)
        # WHEN the client that asked for the jump is killed before the debuggee has answered
        asking = asyncio.create_task(session.request("goto", {"threadId": 1, "targetId": 1}))
        while debuggee.asked[-1] != "goto":
            await asyncio.sleep(0)
        late = debuggee.withdraw_answer()
        asking.cancel()
        await asyncio.wait({asking})
        debuggee.answer(late)
        # THEN the process is known to stand where it stood, for the next client
        async with asyncio.timeout(10):
            while session.stop is None:
                await asyncio.sleep(0)
        running.cancel()
        return session.stop.thread_id, session.is_stepping

    assert asyncio.run(scene()) == (1, False)


def test_a_step_under_way_is_known_until_it_stops():
    async def scene():
        debuggee, changed, session, running = await _session()
        debuggee.stop(1)
        await asyncio.wait_for(changed.wait(), 10)
        await session.request("next", {"threadId": 1})
        stepping, changed_again = session.is_stepping, session.stops
        debuggee.stop(1)
        while session.stops == changed_again:
            await asyncio.sleep(0)
        running.cancel()
        return stepping, session.is_stepping

    assert asyncio.run(scene()) == (True, False)


def test_there_is_no_moment_between_a_step_and_its_stop():
    async def scene():
        debuggee, changed, session, running = await _session()
        debuggee.stop(1)
        await asyncio.wait_for(changed.wait(), 10)
        await session.request("next", {"threadId": 1})
        # WHEN the step ends THEN whoever looks at any moment sees that it steps or stands, and releases nothing
        debuggee.stop(1)
        seen = []
        for _ in range(50):
            await asyncio.sleep(0)
            seen.append(session.is_stepping or session.is_halting)
        running.cancel()
        return all(seen), session.is_stepping

    assert asyncio.run(scene()) == (True, False)


def test_whoever_waits_for_a_resume_to_be_decided_hears_of_it():
    async def scene():
        debuggee, changed, session, running = await _session()
        debuggee.stop(1)
        await asyncio.wait_for(changed.wait(), 10)
        asking = asyncio.create_task(session.request("continue", {"threadId": 1}))
        while debuggee.asked[-1] != "continue":
            await asyncio.sleep(0)
        answer = debuggee.withdraw_answer()
        # WHEN the debuggee says that it went before it answers
        debuggee.answer({"type": "event", "event": "continued", "body": {"allThreadsContinued": True}})
        for _ in range(50):
            await asyncio.sleep(0)
        assert session.is_halting
        changed.clear()
        debuggee.answer(answer)
        # THEN its answer is a change: a pause that waits for it does not wait until its time is up
        await asyncio.wait_for(changed.wait(), 10)
        await asking
        running.cancel()
        return session.is_halting

    assert asyncio.run(scene()) is False


def test_a_pause_waits_until_the_step_before_it_has_begun():
    async def scene():
        debuggee, changed, session, running = await _session()
        debuggee.stop(1)
        await asyncio.wait_for(changed.wait(), 10)
        await session.request("stepOut", {"threadId": 1})
        # WHEN it is to be paused and its thread has not gone yet THEN nothing is sent, or the step would undo it
        pausing = asyncio.create_task(session.request("pause", {"threadId": 1}))
        for _ in range(50):
            await asyncio.sleep(0)
        too_early = "pause" in debuggee.asked
        debuggee.answer({"type": "event", "event": "continued", "body": {"threadId": 1, "allThreadsContinued": True}})
        await asyncio.wait_for(pausing, 10)
        running.cancel()
        return too_early, debuggee.asked[-1]

    assert asyncio.run(scene()) == (False, "pause")


def test_a_breakpoint_changed_while_its_session_opens_reaches_the_process(tmp_path):
    sent = []

    class Opening(_Debuggee):
        """A user changes the condition after the breakpoints were sent, before the session is there for anybody."""

        def send(self, message):
            super().send(message)
            if message["command"] == "initialize":
                self.answer({"type": "event", "event": "initialized", "body": {}})
            if message["command"] == "setBreakpoints":
                sent.append(message["arguments"]["breakpoints"][0]["condition"])
            if message["command"] == "configurationDone":
                sessions.breaks.set_condition(1, "x > 1")

    async def scene():
        process = Process(1, {"role": "loop"})
        holding = asyncio.create_task(sessions.hold(process, Opening()))
        async with asyncio.timeout(30):
            while len(sent) < 2:
                await asyncio.sleep(0)
        holding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await holding

    sessions = DebugSessions(tmp_path)
    sessions.breaks.add({"file": "loop.py", "line": 4, "if": "x > 0"})
    asyncio.run(scene())
    assert sent == ["x > 0", "x > 1"]


def test_an_exception_is_asked_for_only_where_a_thread_stopped_at_one():
    """pydevd fails over any other thread, in the output of the job."""

    async def scene():
        debuggee, _, session, running = await _session()
        session._halted({"threadId": 7, "reason": "breakpoint"})
        session._halted({"threadId": 8, "reason": "exception"})
        await asyncio.gather(*session._locating)
        for thread in (7, 9, None):
            with pytest.raises(UsageError, match="no exception"):
                await session.request("exceptionInfo", {"threadId": thread})
        assert "exceptionInfo" not in debuggee.asked
        assert await session.request("exceptionInfo", {"threadId": 8}) == {}
        running.cancel()

    asyncio.run(scene())


def test_a_stop_that_is_taken_over_began_when_the_thread_stopped():
    async def scene():
        _, _, session, running = await _session()
        session.take_over({"stopped": [{"body": {"threadId": 7}, "elapsed_s": 30.0}]})
        await asyncio.gather(*session._locating)
        running.cancel()
        return time.time() - session.stop.since

    assert 30.0 <= asyncio.run(scene()) < 45.0
