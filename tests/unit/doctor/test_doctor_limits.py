"""A limit from outside ends healthy programs, and such as had failed or were stuck before: for these it is no cause."""

import pytest

LIMIT = "slurmstepd: error: *** STEP 7.2 ON n1 CANCELLED AT 2026-08-03T22:00:14 DUE TO TIME LIMIT ***\n"
ABORTED = "srun: Job step aborted: Waiting up to 122 seconds for job step to finish.\n" * 2
STEPS = "".join(f"step: {number} loss: 0.{90 - number}\n" for number in range(1, 30))
WAITS = "".join(f"Wait iteration {217 * number}: buffer_size=0, step 29 ready=False\n" for number in range(12))
FAILED = """\
(Collector pid=7007) ❌ Error in batch worker (target=1): seams of batch 1 are loose
(Collector pid=7007) Traceback (most recent call last):
(Collector pid=7007)   File "/w/sewing/collector.py", line 912, in run_batch
(Collector pid=7007)     raise RuntimeError(
(Collector pid=7007) RuntimeError: seams of batch 1 are loose
(Collector pid=7007) 🧹 Released reservation for target 1
"""


@pytest.mark.parametrize("log", [STEPS + LIMIT + ABORTED, FAILED + STEPS + LIMIT, LIMIT + ABORTED])
def test_a_limit_is_the_cause_where_steps_were_made_until_then(verdict, log):
    found = verdict(log)
    assert [(cause.id, cause.confidence) for cause in found.root_causes] == [("slurm-job-cancelled", "high")]


def test_a_limit_after_an_endless_wait_is_no_cause(verdict):
    found = verdict(STEPS + WAITS + LIMIT + ABORTED)
    assert (found.verdict, [cause.id for cause in found.fallout]) == ("unknown", ["slurm-job-cancelled"])
    assert any("again and again: Wait iteration" in step for step in found.next)


def test_waits_between_steps_are_no_stall(verdict):
    between = "".join(f"Waiting for samples, 0 ready\nstep: {number} loss: 0.3\n" for number in range(1, 30))
    assert [cause.id for cause in verdict(between + LIMIT + ABORTED).root_causes] == ["slurm-job-cancelled"]


def test_a_limit_after_a_failure_with_no_step_since_is_no_cause(verdict):
    found = verdict(STEPS + FAILED + WAITS + LIMIT + ABORTED)
    assert not found.root_causes
    assert "seams of batch 1 are loose" in found.headline
    assert verdict(STEPS + FAILED + WAITS).verdict == "unknown"


def test_a_limit_after_a_known_failure_is_no_cause(verdict):
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert [cause.id for cause in verdict(STEPS + oom + WAITS + LIMIT).root_causes] == ["torch-cuda-oom"]


def test_errors_before_a_failure_are_shown_with_it(verdict):
    refused = (
        "[policy] ERROR: asking http://10.0.0.7:1/v1 failed: 500, message='Internal Server Error'. Retrying (1/3)\n"
    )
    found = verdict(STEPS + refused * 4 + FAILED + WAITS)
    assert any("500" in quote.text for quote in found.also_says)
