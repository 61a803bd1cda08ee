"""A run that completed did not fail by what it printed on the way, or while its processes ended."""

import pytest

STEPS = "".join(f"{{'loss': 0.{n}, 'grad_norm': 0.2, 'reward': 0.4, 'epoch': 0.{n}}}\n" for n in range(1, 4))
ENDS = {
    "plain": "100%|##########| 400/400 [1:10:12<00:00, 10.5s/it]\n",
    "global": "Global Step: 100%|##########| 100/100 [25:16:11<00:00, 909s/it, reward=0.9]\n",
    "hours": "Frobnication: 100%|##########| 40/40 [5:10:12<00:00, 465.3s/it]\n",
    "said": "2026-02-01 01:11:34 | INFO | frob.trainer:train:330 - Training done!\n",
}
IMPORT = """Traceback (most recent call last):
  File "{}", line 13, in <module>
    import frob_C
ModuleNotFoundError: No module named 'frob_C'
"""
PACKAGE = IMPORT.format("/opt/v/lib/python3.11/site-packages/frobnic/__init__.py")
SCRIPT = IMPORT.format("/w/train.py")
LIB_WARNING = "(Env(rank=0) pid=81) libEGL warning: failed to open /dev/dri/renderD129: Permission denied\n"
BEFORE = {
    "package": PACKAGE,
    "fallback": PACKAGE + "WARNING: the fused kernels of frobnic cannot be used, falling back to eager\n",
    "script": SCRIPT + "frob_C is unavailable\n",
    "library": LIB_WARNING,
    "removed": "Exception ignored in: <function Screen.__del__ at 0x7f>\n"
    "AttributeError: 'MjRenderContextOffscreen' object has no attribute 'con'\n",
}
TRACE = """{}
Traceback (most recent call last):
  File "/x/frob/session.py", line 190, in {}
    self.link.close()
{}
"""
AFTER = {
    "hook": TRACE.format(
        "Exception ignored in sys.unraisablehook: <built-in function unraisablehook>",
        "f",
        "BrokenPipeError: [Errno 32]",
    ),
    "deallocator": TRACE.format(
        "Exception ignored while calling deallocator <function LLM.__del__ at 0x7f>:",
        "__del__",
        "AttributeError: 'LLM' object has no attribute 'llm_engine'",
    ),
    "exit": TRACE.format(
        "Error in atexit._run_exitfuncs:", "run", "ConnectionRefusedError: [Errno 111] Connection refused"
    ),
    "callback": TRACE.format(
        "Exception ignored in atexit callback: <function shutdown at 0x7f>",
        "run",
        "RuntimeError: CUDA error: unknown error",
    ),
    "removed": "Exception ignored in: <function Run.__del__ at 0x7f>\nConnectionResetError: [Errno 104] reset\n",
    "pending": "Task was destroyed but it is pending!\n"
    "task: <Task pending name='Task-3' coro=<f() running at /x/a.py:3>>\n"
    "asyncio.exceptions.CancelledError\n",
    "semaphores": "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: "
    "There appear to be 12 leaked semaphore objects to clean up at shutdown\n",
    "group": "[rank0]:[W1115 10:00:00.1 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT "
    "been destroyed before we destruct ProcessGroupNCCL. (function operator())\n",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("trouble", BEFORE.values(), ids=BEFORE)
def test_what_a_completed_run_did_without_is_no_failure(verdict, trouble, end):
    assert verdict(trouble + "loading the model\n" + end).verdict == "healthy"


@pytest.mark.parametrize("trouble", AFTER.values(), ids=AFTER)
def test_what_is_printed_while_processes_end_is_no_failure(verdict, trouble):
    for end in ENDS.values():
        assert verdict(STEPS + end + trouble).verdict == "healthy"
    if trouble.startswith(("Exception ignored", "Error in")):
        assert verdict(STEPS + trouble + "loading\n").verdict == "healthy"


def test_an_import_that_all_steps_were_done_without_is_no_failure(verdict):
    for bar in (ENDS["plain"], ENDS["global"], ENDS["hours"]):
        assert verdict(SCRIPT + "loading the model\n" + bar + ENDS["said"]).verdict == "healthy"
    assert verdict(SCRIPT + ENDS["said"]).verdict == "found"


def test_what_python_ignores_hides_nothing_below_it(verdict):
    found = verdict(AFTER["removed"] + SCRIPT)
    assert [cause.id for cause in found.root_causes] == ["python-module-missing"]


def test_a_warning_of_a_library_is_outlived_by_one_step(verdict):
    assert verdict(LIB_WARNING + "step 3 loss 0.4\nstep 4 loss 0.4\n").verdict == "healthy"
    assert verdict(LIB_WARNING).root_causes[0].id == "egl-no-display"


@pytest.mark.parametrize(
    "text",
    [
        STEPS + SCRIPT,
        STEPS + SCRIPT + ENDS["said"],
        ENDS["plain"] + SCRIPT,
        PACKAGE + "Loading checkpoint shards: 100%|####| 3/3 [00:05<00:00,  1.81s/it]\n",
        SCRIPT + "Evaluating: 100%|####| 40/40 [1:10:12<00:00, 10.5s/it]\n",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\n"
        "Rollout generation: 100%|####| 64/64 [1:31:00<00:00, 1.43s/it]\n",
    ],
    ids=["uncaught", "said anyway", "after a bar", "a loader", "an evaluation", "a rollout"],
)
def test_what_ended_a_run_is_a_failure_whatever_else_is_full(verdict, text):
    assert verdict(text).verdict != "healthy"


def test_what_others_try_again_is_not_how_this_failure_was_dealt_with(verdict):
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB.\n"
    others = "(raylet) the lease of another worker was not granted and the pool is busy, will be retried\nloading\n"
    assert verdict(STEPS + memory + others).root_causes[0].id == "torch-cuda-oom"


AFTER_TRAINING = """{{'train_runtime': 310.2, 'epoch': 1.0}}
{0}Traceback (most recent call last):
{0}  File "/w/grpo.py", line 254, in main
{0}    metrics = trainer.evaluate()
{0}  File "/v/lib/python3.12/site-packages/quilt/sew.py", line 4, in evaluate
{0}    hem(model.seam)
{0}AttributeError: 'FrobModel' object has no attribute 'seam'
"""


@pytest.mark.parametrize(("prefix", "said"), [("[rank4]: ", "found"), ("", "healthy")])
def test_what_torch_prints_with_the_rank_after_training_was_not_caught(prefix, said, verdict):
    assert verdict(AFTER_TRAINING.format(prefix)).verdict == said
