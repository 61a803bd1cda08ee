"""A status of HTTP is an answer: the server is alive and refused the request, whatever the client's own words are."""

import pytest

GAVE_UP = (
    "(Syncer pid=4) RuntimeError: Failed after 5 retries each. Payload: {{}}.\n"
    "(Syncer pid=4) Addr: 10.2.0.7:8100\n"
    "(Syncer pid=4) Endpoint: {path}\n"
    "(Syncer pid=4) Last error: {error}\n"
)
STATUS = "ClientResponseError(status={}, message='no')"
PROXY = ("proxy", "does not answer", "curl -m 5")


def test_a_status_below_the_words_of_the_client_is_an_answer(verdict):
    found = verdict("step 3 done\n" + GAVE_UP.format(path="/update_weights_from_tensor", error=STATUS.format(422)))
    cause = found.root_causes[0]
    assert (cause.id, cause.confidence) == ("request-invalid", "medium")
    assert "refused a weight update (HTTP 422)" in cause.title
    assert (
        "10.2.0.7:8100 answered 422 (Unprocessable Entity) to /update_weights_from_tensor: it is alive" in cause.detail
    )
    assert any("names of parameters" in step for step in cause.fix)
    assert not any(word in text for word in PROXY for text in (cause.title, *cause.fix, *found.next))


@pytest.mark.parametrize(
    ("status", "entry"), [(403, "request-refused"), (404, "request-not-found"), (400, "request-invalid")]
)
def test_each_status_has_its_own_entry(verdict, status, entry):
    found = verdict(GAVE_UP.format(path="/generate", error=STATUS.format(status)))
    assert found.root_causes[0].id == entry


def test_an_error_of_the_server_is_in_its_own_log(verdict):
    found = verdict(GAVE_UP.format(path="/generate", error=STATUS.format(500)))
    assert (found.verdict, found.fallout[0].id) == ("unknown", "server-answered-error")
    assert not any("proxy" in step for step in found.next)
    assert any(
        "10.2.0.7:8100 answered 500 (Internal Server Error) to /generate: it is alive" in step for step in found.next
    )
    said = "requests.exceptions.HTTPError: 500 Server Error: Internal Server Error for url: http://10.0.0.2:30000/pause"
    assert verdict(f"{said}\n").fallout[0].id == "server-answered-error"


@pytest.mark.parametrize("error", ["ServerDisconnectedError()", STATUS.format(503)])
def test_no_answer_and_answers_of_what_stands_between_stay(verdict, error):
    assert verdict(GAVE_UP.format(path="/generate", error=error)).fallout[0].id == "engine-does-not-answer"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "requests.exceptions.HTTPError: 400 Client Error: Bad Request for url: http://10.0.0.1:30000/load_lora_adapter",
            "weight",
        ),
        ("RuntimeError: POST http://10.0.0.4:8000/pause_generation failed with status code 409", "state"),
        (
            "httpx.HTTPStatusError: Client error '422 Unprocessable Entity' for url 'http://10.0.0.1:8000/generate'",
            "sampling fields",
        ),
    ],
)
def test_what_to_compare_follows_from_the_path(verdict, line, words):
    cause = verdict(
        f'Traceback (most recent call last):\n  File "/w/sync.py", line 9, in push\n    r.check()\n{line}\n'
    ).root_causes[0]
    assert cause.id == "request-invalid"
    assert any(words in step for step in (cause.title, *cause.fix))


SAVER = "[torch_memory_saver.cpp] CUresult error: 1 (invalid argument)  file=csrc/core.cpp func={} line=81\n"


@pytest.mark.parametrize(
    ("function", "words"), [("pause", "released again"), ("free", "released again"), ("resume", "not paused")]
)
def test_the_function_of_the_memory_saver_tells_which_call_came_twice(verdict, function, words):
    cause = verdict(SAVER.format(function)).root_causes[0]
    assert cause.id == "tms-driver-error"
    assert words in cause.title
    assert cause.confidence == "medium"


def test_the_call_under_way_is_told_from_the_stack(verdict):
    stack = (
        "Traceback (most recent call last):\n"
        '  File "/w/loop.py", line 9, in <module>\n    run()\n'
        '  File "/w/loop.py", line 5, in free_cards\n    group.offload()\n'
        '  File "/w/group.py", line 3, in offload\n    ray.get([a.sleep.remote() for a in self.actors])\n'
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    )
    cause = verdict(SAVER.format("pause") + stack).root_causes[0]
    assert cause.id == "tms-driver-error"
    assert "the call under way was" in cause.detail
    assert "in offload" in cause.detail
