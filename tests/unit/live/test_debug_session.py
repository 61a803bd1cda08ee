"""The broker's debug session: every stop is shown, whatever happens while its place is looked up."""

import asyncio
import gc

from rldbg.live.broker.debug_session import DebugSession


class _Debuggee:
    """Answers every request with an empty body; `stop` reports a stopped thread."""

    def __init__(self):
        self._messages = asyncio.Queue()

    async def receive(self):
        return await self._messages.get()

    def send(self, message):
        self._messages.put_nowait({"type": "response", "request_seq": message["seq"], "success": True, "body": {}})

    def stop(self, thread):
        self._messages.put_nowait({"type": "event", "event": "stopped", "body": {"threadId": thread}})

    def close(self):
        pass


async def _session(prepare_stop):
    debuggee, changed = _Debuggee(), asyncio.Event()
    session = DebugSession(debuggee, on_change=changed.set)
    session.prepare_stop = prepare_stop
    return debuggee, changed, session, asyncio.create_task(session.run())


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
