"""What a server answered: a refusal is an answer, its reason stands in the server's own lines, and what a program says
later of threads and workers that died is not where the failure begins."""

import pytest

REFUSED = """\
(APIServer pid=81) INFO:     10.0.0.4:40126 - "POST /v1/completions HTTP/1.1" 200 OK
{said}\
(APIServer pid=81) INFO:     10.0.0.4:51021 - "POST /v1/completions HTTP/1.1" 404 Not Found
(Sewing) 20260312-00:17:42.453 Executor ERROR: Workflow failed for task 7
Traceback (most recent call last):
  File "/w/sewing/executor.py", line 918, in run_task
    seam = await task.workflow.run(self.engine, task.data)
  File "/w/sewing/http.py", line 118, in ask
    raise RuntimeError(
RuntimeError: Failed after 3 retries each. Payload: {payload}. Last error: 404, message='Not Found', url='http://x:1/v1'
[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 53, in <module>
[rank0]:     main()
[rank0]:   File "/w/sewing/executor.py", line 1204, in wait
[rank0]:     raise RuntimeError("Rollout thread died") from self.raised
[rank0]: RuntimeError: Rollout thread died
"""
REASON = (
    "(APIServer pid=81) ERROR 03-12 00:17:46 [serving.py:114] Error with model error=ErrorInfo(message='No model of "
    "the name is there.', type='NotFoundError', code=404)\n"
)


@pytest.mark.parametrize("payload", ["{'model': 'adapter-7'}", f"{{'prompt': {list(range(400))}}}"])
def test_a_refusal_is_an_answer_however_long_the_request_was(payload, verdict):
    found = verdict(REFUSED.format(said="", payload=payload))
    assert [cause.id for cause in found.root_causes] == ["request-not-found"]
    assert "404" in found.headline or "404" in found.root_causes[0].words
    assert "engine-does-not-answer" not in {cause.id for cause in found.fallout}


def test_what_the_server_says_of_a_refusal_is_shown(verdict):
    found = verdict(REFUSED.format(said=REASON * 3, payload="{}"))
    assert any("No model of the name is" in quote.text for quote in found.also_says)


def test_the_exception_of_a_symptom_stays_first_before_what_tells_of_its_thread(verdict):
    found = verdict(REFUSED.format(said="", payload="{}").replace("404, message='Not Found'", "Server disconnected"))
    assert not found.root_causes
    assert "Failed after 3 retries" in found.headline
    assert found.headline.endswith("; its cause is not in these logs, only: An inference server does not answer")


def test_an_exception_that_says_itself_what_was_wrong_is_not_hidden_by_an_earlier_symptom(verdict):
    found = verdict(
        REFUSED.format(said="", payload="{}")
        .replace("404, message='Not Found'", "Server disconnected")
        .replace("RuntimeError: Rollout thread died", "frob.FrobError: the wibble of this seam is loose")
    )
    assert "the wibble of this seam is loose" in found.headline
