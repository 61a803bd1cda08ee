"""Hangs on a GPU, by answers of NCCL 2.28's RAS service about two processes that shared one GPU."""

import pytest

from rldbg.agent.waits.reading.nccl import _troubles
from rldbg.live.diagnosis.explanation import explain

SKIPPED = b"""Errors
======

Warnings
========

#0-0 (2ed32dd0deddeff4) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 2 -- GPU 0 managed by process 739 on node 127.0.0.1
  Rank 1 has launched up to operation 1 -- GPU 0 managed by process 740 on node 127.0.0.1

"""
OTHER_ORDER = SKIPPED.replace(
    b"  Communicator",
    b"""  Communicator ranks have different Broadcast operation counts
  Rank 1 has launched up to operation 1 -- GPU 0 managed by process 740 on node 127.0.0.1
  Rank 0 has not launched any operations -- GPU 0 managed by process 739 on node 127.0.0.1
  Communicator""",
)
COUNTED = b"""Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  6 ranks have launched up to operation 6650
  Rank 1 has launched up to operation 6649 -- GPU 0 managed by process 740 on node 127.0.0.1

"""
KILLED = b"""Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 740 on node 127.0.0.1 managing GPU 0

#0-0 (a67fe94dc129463c) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 0 managed by process 740 on node 127.0.0.1

#0-0 (a67fe94dc129463c) ERROR
  Asynchronous error on 1 rank
  Rank 0 reported Remote process error -- GPU 0 managed by process 739 on node 127.0.0.1

Warnings
========

"""
SIZES = b"""Errors
======

#0-0 (a67fe94dc129463c) ERROR
  Asynchronous error on 1 rank
  Rank 0 reported Invalid usage -- GPU 0 managed by process 739 on node 127.0.0.1

"""


def _stack(rank, kind, line, function):
    place = {"file": "job.py", "line": line, "function": function}
    thread = {"thread": "MainThread", "main": True, "ident": 1, "native": 700 + rank, "background": False}
    thread |= {"frames": [place], "place": place, "wait": {"kind": kind}, "kernel": {}}
    return {"who": f"job/{rank}", "role": "job", "rank": rank, "host": "node", "pid": 739 + rank, "threads": [thread]}


def _said(answer, *stacks):
    first, *others = stacks
    return explain([first | {"nccl": _troubles(answer)}, *others])


WAITS = _stack(0, "cuda", 13, "sync_gradients")
SLEEPS = _stack(1, "sleep", 46, "load_batch")


def test_a_rank_that_has_not_launched_a_collective_is_named_with_what_it_does():
    (found,) = _said(SKIPPED, WAITS, SLEEPS)
    assert found.verdict == (
        "rank 0 waits at job.py:13 (sync_gradients) for the GPU to finish its work (AllReduce 2 of NCCL communicator "
        "#0-0); rank 1 has launched 1 of 2 operations, but sleeps (time.sleep) at job.py:46 (load_batch)"
    )
    assert found.to_finding().severity.name == "ERROR"


def test_ranks_that_are_only_counted_wait_for_those_that_are_named():
    (found,) = _said(COUNTED, WAITS, SLEEPS)
    assert "collective 6650 of NCCL communicator #0-0); rank 1 has launched 6649 of 6650 operations" in found.verdict


def test_ranks_that_launched_different_operations_wait_for_each_other():
    (found,) = _said(OTHER_ORDER, WAITS, _stack(1, "cuda", 20, "step"))
    assert found.kind == "deadlock" and found.ranks == (0, 1)
    assert found.fix == ("make all ranks call the same collectives in the same order",)
    assert "AllReduce 2 of" in found.verdict and "Broadcast 1 of" in found.verdict


@pytest.mark.parametrize("inspected", [True, False])
def test_a_rank_that_has_ended_is_named(inspected):
    ended = {"who": "python@740", "host": "node", "pid": 740, "rank": None, "state": "exited", "threads": []}
    (found,) = _said(KILLED, WAITS, *([ended] if inspected else []))
    what = "python@740 is part of it, but has ended"
    silent = "rank 1 of that communicator (process 740 on node) is part of it, but does not answer NCCL"
    assert found.kind == ("ended" if inspected else "not_found") and (what if inspected else silent) in found.verdict


def test_an_error_that_nccl_reports_is_the_first_cause():
    found, *_ = _said(SIZES, WAITS)
    assert found.verdict == "NCCL communicator #0-0 has failed: rank 0 reported Invalid usage"


def test_a_wait_for_the_gpu_alone_is_no_hang():
    (found,) = explain([WAITS, _stack(1, "cuda", 13, "sync_gradients")])
    assert found.kind == "cuda" and found.to_finding().severity.name == "INFO" and "may be slow" in found.fix[0]
