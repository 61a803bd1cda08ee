"""Options and commands that a program does not have: whose program, which option is near, and no advice of others."""

import pytest

USAGE = (
    "usage: {program} [-h] --model-path P [--max-loras-per-batch N] [--max-loaded-adapters N]\n"
    "                [--seed S]\n"
)
NAMESPACE = """Traceback (most recent call last):
  File "/v/lib/python3.10/runpy.py", line 196, in _run_module_as_main
    return run()
  File "/v/lib/python3.10/site-packages/openrlhf/cli/train_seam.py", line 4, in <module>
    train(args)
  File "/v/lib/python3.10/site-packages/openrlhf/trainer/seam.py", line 9, in make
    if args.seam_sleep:
AttributeError: 'Namespace' object has no attribute 'seam_sleep'
"""


@pytest.mark.parametrize(
    ("program", "said", "words", "fix"),
    [
        (
            "launch_server.py",
            "unrecognized arguments: --max-loaded-adapter 1",
            "installed sglang (launch_server.py)",
            "--max-loaded-adapters",
        ),
        ("my_train.py", "unrecognized arguments: --sed 1", "my_train.py has no option --sed", "--seed"),
        (
            "TRL CLI",
            "argument command: invalid choice: 'seam-serve' (choose from 'chat', 'dpo')",
            "installed trl (TRL CLI) has no seam-serve",
            "pip show trl",
        ),
    ],
)
def test_the_program_that_lacks_an_option_is_named(program, said, words, fix, verdict):
    cause = verdict(f"INFO start\n{USAGE.format(program=program)}{program}: error: {said}\n").root_causes[0]
    assert words in cause.detail
    assert fix in "".join(cause.fix)
    assert "hydra" not in "".join(cause.fix).lower()


def test_an_option_that_resembles_none_is_not_corrected(verdict):
    text = USAGE.format(program="launch_server.py") + "launch_server.py: error: unrecognized arguments: --wibble 1\n"
    assert "nearest" not in "".join(verdict(text).root_causes[0].fix)


def test_the_script_that_defines_no_such_option_is_named(verdict):
    headline = verdict(NAMESPACE).headline
    assert "openrlhf/cli/train_seam.py" in headline
    assert "--seam_sleep" in headline


@pytest.mark.parametrize(
    "said",
    [
        "dtype_q_bf16::plan() is missing value for argument '_15'. Declaration: plan(Tensor _0) -> Tensor",
        "plan() expected at most 18 argument(s) but received 19 argument(s). Declaration: plan(Tensor _0)",
    ],
)
def test_an_operation_that_takes_other_arguments_is_of_another_release(said, verdict):
    log = f"""Traceback (most recent call last):
  File "/v/lib/python3.10/site-packages/sglang/srt/layers/attention/flashinfer_backend.py", line 4, in plan
    self.module.plan(x)
  File "/v/lib/python3.10/site-packages/torch/_ops.py", line 829, in __call__
    return self._op(*args, **kwargs)
RuntimeError: {said}
"""
    cause = verdict(log).root_causes[0]
    assert cause.id == "interface-mismatch"
    assert "plan() of flashinfer-python takes other arguments than sglang passes" in cause.detail


def test_a_failure_that_led_to_a_call_without_success_comes_first(verdict):
    log = """E1120 11:10:27.133715 203020 transfer_task.cpp:305] Failed to connect to peer 10.0.0.7: connection refused
[2025-11-20 11:10:27 TP2] Scheduler hit an exception: Traceback (most recent call last):
  File "/v/lib/python3.10/site-packages/sglang/srt/managers/scheduler.py", line 2712, in run_scheduler_process
    scheduler = Scheduler(
  File "/v/lib/python3.10/site-packages/sglang/srt/mem_cache/seam.py", line 250, in warmup
    assert self.store.put(key, value) == 0
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
""".replace("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "AssertionError")
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    found = verdict(oom + "INFO freed\n" * 20 + log)
    assert [cause.id for cause in found.root_causes] == ["torch-cuda-oom"]
