"""What a broker that takes a session over is told: who stands, which step is under way, what was announced."""

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
    assert state.to_message() == {"stopped": [STOPPED], "pending": ""}


def test_a_refused_resume_changes_nothing():
    state = StopState()
    state.announce({"stop": 1, "notes": ["a"]})
    state.said(STOPPED)
    state.asked(_request("goto"))
    state.said(_answer(success=False))
    told = state.to_message()
    assert (told["stopped"], told["pending"], told["announced"]["notes"]) == ([STOPPED], "", ["a"])


def test_an_announced_stop_is_told_until_it_is_left():
    state = StopState()
    state.announce({"stop": 1})
    assert state.to_message()["announced"]["stop"] == 1 and not state.is_stopped
    state.said(STOPPED)
    assert state.is_stopped and "announced" in state.to_message()
    state.asked(_request("continue"))
    assert state.to_message() == {"stopped": [], "pending": ""}
