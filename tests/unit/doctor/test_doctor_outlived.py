"""What the program outlived, by its own end: jobs that succeeded, tests that passed, one item of many."""

import pytest

from rldbg.doctor import diagnose

UNCAUGHT = (
    "Traceback (most recent call last):\n"
    '  File "/w/train.py", line 9, in <module>\n    main()\n'
    '  File "/w/train.py", line 5, in main\n    step()\n'
)


def ids(found):
    return [cause.id for cause in found.root_causes]


def steps(first, last):
    return "".join(f"rollout {number}: raw_reward 0.4 response_len 311\n" for number in range(first, last))


def test_one_later_count_does_not_outlive_what_ended_the_program(tmp_path, index):
    """A manager that winds down names the rollout that it gives up."""
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.84 GiB."
    remote = "ray.exceptions.RayTaskError(OutOfMemoryError): ray::Actor.train() (pid=7, ip=10.0.0.1)\n"
    inner = '  File "/w/loss.py", line 4, in logits\n    x - y\n'
    text = steps(0, 6) + UNCAUGHT + remote + inner + oom + "\n(Manager pid=9) abort request for rollout 8\n"
    (tmp_path / "run.log").write_text(text)
    assert [cause.id for cause in diagnose([tmp_path / "run.log"], index=index).root_causes] == ["torch-cuda-oom"]


def test_requests_that_were_refused_are_no_cause_of_a_later_crash(tmp_path, index):
    refused = (
        "(APIServer pid=1) ERROR 05-28 08:04:02 [serving.py:268] This model's maximum context length is 32768 tokens. "
        "However, your request has 33010 input tokens.\n"
    )
    served = '(APIServer pid=1) INFO:     10.3.0.4:33709 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    head = "(EngineCore pid=9) ERROR 05-28 08:06:13 [core.py:1167] "
    crash = [
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        '  File "/opt/lib/python3.12/site-packages/vllm/v1/frob.py", line 90, in wibble',
        "    wobble(x)",
        "RuntimeError: wibble error: the wobble is defined multiple times",
    ]
    for before in ((refused + served) * 3, served):
        text = before + refused + "INFO idle\n" * 20 + "".join(f"{head}{line}\n" for line in crash)
        (tmp_path / "run.log").write_text(text)
        found = diagnose([tmp_path / "run.log"], index=index)
        assert "prompt-too-long" not in [cause.id for cause in found.root_causes]
        assert "wobble is defined" in found.headline


def test_a_job_that_ray_calls_succeeded_outlived_the_end_of_its_engines(tmp_path, index):
    text = (
        steps(0, 6) + "(SGLangEngine pid=3) Received sigquit from a child process. It usually means the child failed.\n"
    )
    (tmp_path / "run.log").write_text(text)
    assert diagnose([tmp_path / "run.log"], index=index).verdict != "healthy"
    (tmp_path / "run.log").write_text(text + "---\nJob 'raysubmit_Qz7' succeeded\n---\n")
    assert diagnose([tmp_path / "run.log"], index=index).verdict == "healthy"


@pytest.mark.parametrize(
    "total",
    [
        "# 3 tests, 0 failures",
        "3 passing, 0 failing",
        "Tests run: 3, Failures: 0, Errors: 0",
        "Ran 3 tests in 0.2s\n\nOK",
    ],
)
def test_what_tests_make_fail_that_all_passed_is_no_failure(total, tmp_path, index):
    tests = "".join(
        f"# inject\n# torch.OutOfMemoryError: CUDA out of memory.\nok {number} case {number}\n" for number in (1, 2, 3)
    )
    (tmp_path / "run.log").write_text(f"1..3\n{tests}{total}\n")
    assert diagnose([tmp_path / "run.log"], index=index).verdict == "healthy"
    (tmp_path / "run.log").write_text(
        f"1..3\n{tests}{total.replace('0 fail', '1 fail').replace(': 0', ': 1')}\n".replace("OK", "FAILED")
    )
    assert diagnose([tmp_path / "run.log"], index=index).verdict != "healthy"


@pytest.mark.parametrize(
    ("case", "total", "failing"),
    [
        (
            "test_{0} (faults.Faults.test_{0}) ... \n{1}\nok\n",
            "Ran 3 tests in 8.214s\n\nOK (skipped=1)",
            "FAILED (errors=1)",
        ),
        (
            "{0}: {1}\n{0}/3 Test  #{0}: case_{0} ..........   Passed    9.02 sec\n",
            "100% tests passed, 0 tests failed out of 3\n\nTotal Test time (real) =  14.19 sec",
            "67% tests passed, 1 tests failed out of 3",
        ),
    ],
)
def test_runners_that_write_a_result_below_the_output_of_a_test(case, total, failing, tmp_path, index):
    tests = "".join(case.format(number, "torch.OutOfMemoryError: CUDA out of memory.") for number in (1, 2, 3))
    for end, is_healthy in ((total, True), (failing, False)):
        (tmp_path / "run.log").write_text(f"{tests}\n{end}\n")
        assert (diagnose([tmp_path / "run.log"], index=index).verdict == "healthy") is is_healthy


def test_the_report_on_one_sample_of_many_is_no_failure_of_the_program(tmp_path, index):
    """An evaluation that runs what a model wrote: each verdict is of one sample, fenced text is the model's."""
    oom = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB"
    rows = ["loading samples"]
    for number in range(1, 9):
        rows.append(f"[sample {number:03d}] passed=True")
        rows += [f"[box] Task/{number}: execution result: failed: {oom}"] if number in (1, 4, 6) else []
        rows += ["--- text ---", "Let me see.", "```", oom, "```", "So there.", "--- end ---"] if number == 2 else []
    rows += ["[sample 009] passed=True", "| pass@1 | 0.70 |"]
    (tmp_path / "run.log").write_text("\n".join(rows) + "\n")
    assert diagnose([tmp_path / "run.log"], index=index).verdict == "healthy"


def test_a_whole_log_between_fences_is_a_log(tmp_path, index):
    text = (
        "My run fails:\n```\n"
        + steps(0, 3)
        + UNCAUGHT
        + "torch.OutOfMemoryError: CUDA out of memory.\n```\nAny idea?\n"
    )
    (tmp_path / "run.log").write_text(text)
    assert diagnose([tmp_path / "run.log"], index=index).verdict == "found"


KILLED = """(Task pid=7) Traceback (most recent call last):
(Task pid=7)   File "/x/ray/_private/workers/default_worker.py", line 322, in <module>
(Task pid=7)     worker.main_loop()
(Task pid=7)   File "/x/torch/utils/data/_utils/signal_handling.py", line 73, in handler
(Task pid=7)     _error_if_any_worker_fails()
(Task pid=7) RuntimeError: DataLoader worker (pid 563735) is killed by signal: Killed.
"""
RESULTS = "(Task pid=7) step:6 - actor/entropy:0.2\n(Task pid=7) (\"Final validation metrics: {'acc': 1.0}\"\n"


def test_a_process_that_tells_its_results_after_an_exception_did_not_end_by_it(verdict):
    begun = "".join(f"(Task pid=7) step:{step} - actor/entropy:0.2\n" for step in range(1, 6))
    assert verdict(begun + KILLED + RESULTS).verdict == "healthy"
    assert verdict(begun + KILLED + "\x1b[36m(Task pid=7)\x1b[0m ('Final results: 1.0')\n").verdict == "healthy"
    for other in (RESULTS.replace("Task pid=7", "Side pid=8"), "", "(Task pid=7) Final evaluation failed\n"):
        assert verdict(begun + KILLED + other).verdict != "healthy", other
    assert verdict(begun + KILLED + RESULTS + KILLED.replace("pid=7", "pid=9")).verdict != "healthy"


NOT_FOUND = "/spool/job1/slurm_script: line 13: /w/env/bin/activate: No such file or directory\n"
CANCELLED = "slurmstepd: error: *** JOB 1 ON cpu1 CANCELLED AT 2026-11-15T10:00:00 ***\n"


@pytest.mark.parametrize("done", ["{:.2f}G/10.9G", "{:.0f}/112"])
def test_a_line_that_a_script_could_not_run_did_not_end_what_was_working_when_it_was_stopped(verdict, done):
    bars = "".join(f"Upload: 4%|# | {done.format(number)} [00:{number}<02:12, 9.1it/s]\n" for number in range(10, 60))
    stopped = verdict(NOT_FOUND + bars + CANCELLED)
    assert (ids(stopped), [cause.id for cause in stopped.fallout]) == ([], ["slurm-job-stopped"])
    assert verdict(NOT_FOUND + bars).unfinished
    waited = "waiting for the frob\n" * 40
    assert ids(verdict(NOT_FOUND + waited + CANCELLED)) == ["launch-script-failed"]
    assert ids(verdict(bars + NOT_FOUND)) == ["launch-script-failed"]


@pytest.mark.parametrize("count", [3, 80, 130, 3000], ids=["few", "more than are kept", "than are tried", "a flood"])
def test_a_loss_that_stays_nan_is_not_outlived_by_its_own_steps(verdict, count):
    well = "".join(f"step {number:05} (0.00%) | loss: 2.31 | dt: 5.04ms\n" for number in range(5))
    lost = "".join(f"step {number:05} (0.00%) | loss: nan | dt: 5.04ms\n" for number in range(5, 5 + count))
    again = "".join(f"step {number:05} (0.00%) | loss: 2.31 | dt: 5.04ms\n" for number in range(5 + count, 15 + count))
    assert ids(verdict(well + lost)) == ["nan-gradients"]
    assert verdict(well + lost + again).verdict == "healthy"
