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


IMPORTED = """Traceback (most recent call last):
  File "/v/lib/python3.12/site-packages/quiltserve/__init__.py", line 31, in <module>
    patch()
  File "/v/lib/python3.12/site-packages/quiltserve/patches.py", line 5, in patch
    import seamformers.hub
  File "{caller}", line 89, in {function}
    LayerRepository(
  File "/v/lib/python3.12/site-packages/seamkernels/layer.py", line 118, in __init__
    raise ValueError("Either a revision or a version must be specified.")
ValueError: Either a revision or a version must be specified.
"""
HUB = "/v/lib/python3.12/site-packages/seamformers/hub.py"


def test_a_call_that_is_refused_while_a_package_is_imported_is_of_other_releases(verdict):
    cause = verdict(IMPORTED.format(caller=HUB, function="<module>")).root_causes[0]
    assert cause.id == "interface-mismatch"
    assert "seamformers calls seamkernels while it is imported (seamformers/hub.py:89 in <module>)" in cause.detail
    assert "pip show seamformers seamkernels" in cause.detail


@pytest.mark.parametrize(("caller", "function"), [(HUB, "load"), ("/home/me/train.py", "<module>")])
def test_what_a_running_program_asks_for_is_no_matter_of_releases(caller, function, verdict):
    causes = verdict(IMPORTED.format(caller=caller, function=function)).root_causes
    assert "interface-mismatch" not in [cause.id for cause in causes]


def test_the_package_that_asks_for_a_shared_library_is_named(verdict):
    log = """Traceback (most recent call last):
  File "/home/me/serve.py", line 3, in <module>
    import seam_ep
  File "/v/lib/python3.12/site-packages/seam_ep/__init__.py", line 23, in <module>
    from . import _C
ImportError: libcudart.so.13: cannot open shared object file: No such file or directory
"""
    cause = verdict(log).root_causes[0]
    assert cause.id == "shared-library-missing"
    assert "CUDA 13" in cause.title
    assert "libcudart.so.13 is asked for by seam_ep (seam_ep/__init__.py:23 in <module>)" in cause.detail


def test_a_server_that_hands_a_request_on_is_not_who_calls(verdict):
    log = """Traceback (most recent call last):
  File "/v/lib/python3.10/site-packages/fastapi/applications.py", line 1163, in __call__
    await super().__call__(scope, receive, send)
  File "/v/lib/python3.10/site-packages/starlette/applications.py", line 90, in __call__
    await self.middleware_stack(scope, receive, send)
TypeError: SeamDetector.__init__() got an unexpected keyword argument 'continue_final'
"""
    cause = verdict(log).root_causes[0]
    assert cause.id == "interface-mismatch"
    assert "starlette" not in cause.detail and "fastapi" not in cause.detail
