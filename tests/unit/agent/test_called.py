"""What functions will do with objects, from the line where they are."""

import os
import sys
import threading

from rldbg.agent.waits.code.called import may_act, paths_ahead, routes_to, uses_ahead
from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.reading.objects import OwnFrame


def handle(requests, other):
    state = {"event": threading.Event()}
    requests.append(state)
    yield OwnFrame(sys._getframe())
    for state in requests:
        state["event"].set()
        other.set()
        yield OwnFrame(sys._getframe())


def _known(frame):
    return {
        value.address for value, method in uses_ahead(frame, None, Sources(os.getpid())) if method == "set" and value
    }


def test_a_variable_that_a_later_loop_gives_another_value_is_not_known_yet():
    requests, other = [], threading.Event()
    running = handle(requests, other)
    # GIVEN a function before its loop, which has the variable from an earlier use
    assert _known(next(running)) == {id(other)}
    # THEN the variable is known in the loop alone
    assert _known(next(running)) == {id(other), id(requests[0]["event"])}


def test_who_completes_what_a_later_loop_gives_it_may_complete_anything_there():
    running, sources = handle([], threading.Event()), Sources(os.getpid())
    assert may_act(next(running), frozenset({"set"}), sources, table="requests")
    assert not may_act(next(handle([], threading.Event())), frozenset({"clear"}), sources)


def abort(post, url):
    post("/pause", {"mode": "abort"})
    frame = OwnFrame(sys._getframe())
    post(url + "/resume", {})
    post(f"{url}/v1/start", {})
    return frame


def test_what_is_asked_of_a_server_afterwards_is_told_with_its_line():
    frame = abort(lambda *_: None, "http://engine")
    asked = list(paths_ahead([frame], Sources(os.getpid())))
    assert [each["path"] for each in asked] == ["/resume", "/v1/start"]
    assert asked[0]["line"] == frame.line + 1 and asked[0]["function"] == "abort"


def test_the_paths_under_which_a_server_calls_a_function_are_found(tmp_path):
    file = tmp_path / "server.py"
    file.write_text(
        "router.add_post('/resume', server.resume)\nrouter.add_get('/', server.resume)\n"
        "@app.post('/v1/resume')\nasync def resume(): ...\n@app.post('/pause')\ndef pause(): ...\n"
    )
    assert routes_to({"resume"}, str(file), Sources(os.getpid())) == ["/resume", "/v1/resume"]
