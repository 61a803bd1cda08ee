"""An address that is asked until the log ends and at which nothing answers, at whatever level programs log that."""

import pytest

POOL = (
    "HTTPConnectionPool(host='127.0.0.1', port={port}): Max retries exceeded with url: {path} (Caused by "
    "NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f{n}>: Failed to establish a new connection: "
    "[Errno 111] Connection refused'))"
)
HEAD = "(Trainer pid=7) step 3 done\n(Engine pid=8) Processed prompts: 100%|██| 64/64 [00:21<00:00, 3.0it/s]\n"


def asked(count, *, port=7001, path="/judge", level="INFO "):
    line = "(grade_remotely pid={pid}) {level}11-02 10:00:0{n} judge_client.py:31] no answer yet: {pool}\n"
    return "".join(
        line.format(pid=90 + n % 2, level=level, n=n, pool=POOL.format(port=port, path=path, n=n)) for n in range(count)
    )


@pytest.mark.parametrize("level", ["INFO ", "DEBUG ", ""])
def test_refusals_that_are_only_informed_of_are_the_failure(verdict, level):
    found = verdict(HEAD + asked(4, level=level))
    cause = found.root_causes[0]
    assert cause.id == "address-never-answers"
    assert "Nothing listens at 127.0.0.1:7001" in found.headline
    assert "grade_remotely (2 processes), in judge_client.py, asks 127.0.0.1:7001/judge" in cause.detail
    assert cause.fix[0].startswith("Start the reward or judge server that should listen at 127.0.0.1:7001 on that same")


def test_other_wordings_and_repetitions_count(verdict):
    line = (
        "(ToolActor pid=5) INFO: Cannot connect to host 10.0.4.2:8300 ssl:default [Connect call failed ('10.0.4.2', "
        "8300)] [repeated 9x across cluster]\n"
    )
    found = verdict(HEAD + line)
    assert "Nothing listens at 10.0.4.2:8300" in found.headline
    found = verdict(HEAD + "search: no route to host, asked http://10.0.4.2:8300/retrieve\n" * 3)
    assert "Nothing answers at 10.0.4.2:8300" in found.headline


@pytest.mark.parametrize(
    "after",
    [
        "(grade_remotely pid=91) INFO judge_client.py:40] POST http://127.0.0.1:7001/judge 200 OK\n",
        "(grade_remotely pid=91) INFO judge_client.py:40] connected to the judge\n",
        "(Trainer pid=7) step 4 done\n",
        "(grade_remotely pid=91) INFO judge_client.py:40] falling back to string match, score=0.0\n",
        "a\nb\nc\nd\ne\n",
    ],
)
def test_a_program_that_goes_on_is_healthy(verdict, after):
    assert verdict(HEAD + asked(4) + after).verdict == "healthy"


def test_what_is_not_needed_or_seldom_is_healthy(verdict):
    assert verdict(HEAD + asked(2)).verdict == "healthy"
    assert verdict(HEAD + asked(5, path="/metrics")).verdict == "healthy"
    between = asked(2) + "(Trainer pid=7) step 4 done\n(Trainer pid=7) step 5 done\n" + asked(3)
    assert verdict(HEAD + between).verdict == "healthy"


def test_what_comes_after_training_was_done_is_healthy(verdict):
    done = (
        "".join(f"(Trainer pid=7) step {n} done\n" for n in range(4, 13))
        + "(Trainer pid=7) Training finished: total steps 12\n"
    )
    assert verdict(HEAD + done + asked(4, level="")).verdict == "healthy"


def test_an_exception_after_them_says_more(verdict):
    end = 'Traceback (most recent call last):\n  File "/w/run.py", line 3, in <module>\nValueError: no rewards\n'
    assert all(cause.id != "address-never-answers" for cause in verdict(HEAD + asked(4) + end).root_causes)
