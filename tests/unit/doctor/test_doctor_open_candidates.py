"""Possible causes of what the logs leave open, where they have a trace of one."""

import pytest

WATCHDOG = (
    "[rank{rank}]:[E302 10:42:28.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=911, OpType={kind}, NumelIn={numel}, NumelOut=4, Timeout(ms)=600000) ran for 600013 "
    "milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("kind", "numel", "words"),
    [
        ("ALLTOALL_BASE", 5_000_000, "expert parallelism"),
        ("_ALLGATHER_BASE", 5_000_000, "FSDP and ZeRO"),
        ("BROADCAST", 5_000_000, "the sender was still busy"),
        ("ALLREDUCE", 1, "metrics, a gradient norm"),
        ("SEND", 5_000_000, "pipeline parallelism"),
    ],
)
def test_the_collective_that_did_not_finish_tells_what_calls_it(verdict, kind, numel, words):
    found = verdict("".join(WATCHDOG.format(rank=rank, kind=kind, numel=numel) for rank in (2, 5)))
    assert found.verdict == "unknown"
    assert any(step.startswith(kind) and "possibly" in step and words in step for step in found.next)


def test_a_large_all_reduce_is_called_by_anything(verdict):
    found = verdict(WATCHDOG.format(rank=2, kind="ALLREDUCE", numel=5_000_000))
    assert not any(step.startswith("ALLREDUCE") for step in found.next)


def test_what_was_outlived_may_have_brought_it_about(verdict):
    steps = "".join(f"(Trainer pid=3) step {n} loss 0.3\n" for n in range(1, 9))
    full = "(Fold pid=9) OSError: [Errno 28] No space left on device\n"
    died = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
    found = verdict(full + steps + died)
    assert found.verdict == "unknown"
    assert any(step.startswith("possible cause: ") and "x.log:1 reports it before" in step for step in found.next)


def test_a_healthy_log_does_not_state_what_was_outlived_as_a_fact(verdict):
    steps = "".join(f"(Trainer pid=3) step {n} loss 0.3\n" for n in range(1, 9))
    found = verdict("(Fold pid=9) OSError: [Errno 28] No space left on device\n" + steps)
    assert found.verdict == "healthy"
    assert found.headline.startswith("no failure found; the program went on after a line that can mean: ")
