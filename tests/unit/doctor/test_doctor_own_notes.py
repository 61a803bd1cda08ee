"""What rldbg itself writes into a program's output is no evidence, and its code in a traceback raised nothing."""

import pytest

STEPS = "step 1 loss 2.3\nstep 2 loss 2.1\n"


@pytest.mark.parametrize(
    "note",
    [
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB",
        "crash file /w/crashes/seam.json: Segmentation fault (core dumped)",
        "the crash could not be recorded: OSError: [Errno 28] No space left on device",
        "ended by SIGTERM; exit code 143; run folder /w/runs/1",
    ],
)
@pytest.mark.parametrize("prefix", ["", "(FrobWorker pid=31) ", "[rank3]: "])
def test_a_note_of_rldbg_is_no_failure(verdict, note, prefix):
    assert verdict(f"{STEPS}{prefix}rldbg: {note}\n").verdict == "healthy"


def test_a_note_inside_a_traceback_is_passed_over(verdict):
    log = """Traceback (most recent call last):
rldbg: crash file /w/crashes/seam.json: rldbg attach /w/crashes/seam.json
  File "/w/train.py", line 3, in <module>
    seam()
rldbg: the crash could not be recorded: OSError: [Errno 28] No space left on device
ValueError: seven wibbles do not fit
"""
    found = verdict(log)
    assert found.root_causes == ()
    assert found.first_error is not None
    assert found.first_error.headline == "ValueError: seven wibbles do not fit"


def test_a_call_through_the_agent_is_of_whoever_called_it(verdict):
    log = """Traceback (most recent call last):
  File "/w/train.py", line 3, in <module>
    seam()
  File "/v/lib/python3.11/site-packages/rldbg/agent/hooks.py", line 30, in called
    return function(*args)
ValueError: seven wibbles do not fit
"""
    found = verdict(log)
    assert "rldbg" not in " ".join((found.headline, *found.next))
