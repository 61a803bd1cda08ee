"""When a run is asked to end, its signal is not held up by processes that were held at their exceptions."""

import asyncio
import time

from rldbg.live.broker.client_handler import ClientHandler
from rldbg.live.broker.processes import Process
from rldbg.live.broker.state import BrokerState


def test_a_process_that_ends_slowly_does_not_hold_up_the_signal(tmp_path):
    state = BrokerState(tmp_path)
    asked = []

    async def resume(process, how, **_arguments):
        asked.append((process.who, how))
        # As long as torch takes to leave its process group.
        await asyncio.sleep(60.0)

    state.sessions.resume = resume
    held = Process(1, {"pid": 7}, who="train/1", crash={"wait_s": 60.0, "where": "process", "exception": "E at 1"})
    assert "hold_s" in state.holds.decide(held)

    async def scene():
        begin = time.monotonic()
        answer = await ClientHandler(state, "run").answer("ending", {"signal": "SIGTERM"})
        return answer, time.monotonic() - begin

    answer, took_s = asyncio.run(scene())
    assert asked == [("train/1", "continue")] and answer == {"resumed": ["train/1"]}
    assert took_s < 2.0, "rldbg run waits no longer than this for the answer"
    assert state.holds.decide(held) == {"reason": "the run was asked to end (SIGTERM)"}
