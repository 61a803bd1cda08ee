"""What a broker that takes a session over is told: who stands, which step is under way, what was announced."""

from types import SimpleNamespace

from rldbg.agent.stop_state import StopState

STOPPED = {"type": "event", "event": "stopped", "body": {"threadId": 7, "reason": "breakpoint"}}
CONTINUED = {"type": "event", "event": "continued", "body": {"threadId": 7}}


def _request(command, seq=3):
    return {"type": "request", "seq": seq, "command": command}


def _answer(seq=3, *, success):
    return {"type": "response", "request_seq": seq, "success": success}


def test_a_step_is_under_way_until_it_has_ended_in_a_stop():
    state = StopState()
    state.said(STOPPED)
    state.asked(_request("next"))
    state.said(_answer(success=True))
    state.said(CONTINUED)
    assert state.to_message() == {"stopped": [], "pending": "step"}
    state.said(STOPPED)
    (stopped,) = state.to_message()["stopped"]
    assert stopped.pop("elapsed_s") >= 0 and stopped == STOPPED and state.to_message()["pending"] == ""


def test_a_refused_resume_changes_nothing():
    state = StopState()
    state.announce({"stop": 1, "notes": ["a"]})
    state.said(STOPPED)
    state.asked(_request("goto"))
    state.said(_answer(success=False))
    told = state.to_message()
    assert (told["stopped"][0]["body"], told["pending"], told["announced"]["notes"]) == (STOPPED["body"], "", ["a"])


def test_the_next_broker_is_told_for_how_long_a_thread_stands(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("rldbg.agent.stop_state.time", SimpleNamespace(monotonic=lambda: clock.now))
    state = StopState()
    state.said(STOPPED)
    clock.now = 130.0
    # A resume that is refused does not begin another stop.
    state.asked(_request("goto"))
    state.said(_answer(success=False))
    assert state.to_message()["stopped"][0]["elapsed_s"] == 30.0


def test_an_announced_stop_is_told_until_it_is_left():
    state = StopState()
    state.announce({"stop": 1})
    assert state.to_message()["announced"]["stop"] == 1 and not state.is_stopped
    state.said(STOPPED)
    assert state.is_stopped and "announced" in state.to_message()
    state.asked(_request("continue"))
    assert state.to_message() == {"stopped": [], "pending": ""}
