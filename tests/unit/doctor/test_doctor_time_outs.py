"""A collective that did not finish in time: what one rank did meanwhile, and whether any rank is missing."""


def _timed_out(*ranks, number=7):
    return "".join(
        f"[rank{rank}]:[E923 14:39:41.2 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for "
        "1800004 milliseconds before timing out.\n"
        for rank in ranks
    )


def test_data_that_one_rank_prepares_is_why_the_others_time_out(verdict):
    began = "2026-09-23 14:09:40 - INFO - datasets.builder - Generating train split\n"
    bars = "".join(f"\rGenerating train split: {n} examples [{n % 60:02}:00, 9.1 examples/s]" for n in range(200))
    found = verdict(began + bars + _timed_out(2, 1, 3))
    assert [cause.id for cause in found.root_causes] == ["nccl-slow-data"]
    long_ago = verdict(began.replace("14:", "12:") + "step 1 loss 0.3\n" * 30 + _timed_out(2, 1, 3))
    assert not long_ago.root_causes


def test_ranks_that_may_be_all_are_not_said_to_wait_for_another(verdict):
    assert any("if the job has no more" in step for step in verdict(_timed_out(0, 1, 2, 3, number=1)).next)
    assert any("every other rank is silent" in step for step in verdict(_timed_out(1, 2, 3)).next)
