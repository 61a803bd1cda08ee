"""What an entry says of a failure fits where it was raised, and nothing is told that belongs to another wording."""

import pytest

STEPS = 'step 1 loss 2.0\nTraceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n    go()\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.20 GiB."


@pytest.mark.parametrize(
    ("frame", "title"),
    [
        ('"/w/seam.py", line 5, in broadcast_params', "collected or sent"),
        ('"/v/site-packages/transformers/modeling_utils.py", line 5, in from_pretrained', "was loaded"),
        ('"/v/site-packages/torch/optim/adamw.py", line 5, in step', "optimizer"),
        ('"/w/seam.py", line 5, in logprobs_from_logits', "logits"),
        ('"/v/site-packages/vllm/worker/frob.py", line 5, in execute_frob', "inference engine"),
        ('"/v/site-packages/torch/autograd/graph.py", line 5, in _engine_run_backward', "training step"),
        ('"/w/seam.py", line 5, in frob', "PyTorch ran out of GPU memory"),
    ],
)
def test_lack_of_gpu_memory_is_told_by_what_was_being_done(verdict, frame, title):
    cause = verdict(f"{STEPS}  File {frame}\n    frob()\n{OOM}\n").root_causes[0]
    assert (cause.id, title in cause.title) == ("torch-cuda-oom", True)


@pytest.mark.parametrize(
    ("said", "present", "absent"),
    [
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "built", "too old"),
        ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", "newer card", "was built"),
        ("RuntimeError: CUDA error: invalid device ordinal", "count the visible cards", "no GPU at all"),
        ("_pickle.UnpicklingError: invalid load key, 'v'.", "pointer", "left out"),
        ("OSError: Can't load tokenizer for '/w/seam'.", "tokenizer", "account"),
    ],
)
def test_only_what_fits_the_words_is_told(verdict, said, present, absent):
    told = verdict(f"{STEPS}{said}\n").root_causes[0].cause
    assert (present in told, absent in told) == (True, False)


@pytest.mark.parametrize("log", ["The actor is dead because its worker process has died.\n", "Killed\n"])
def test_no_scheduler_is_suspected_without_a_trace_of_one(verdict, log):
    steps = " ".join(step for step in verdict(STEPS.partition("Trace")[0] + log).next if step.startswith("possible"))
    assert not any(word in steps for word in ("Kubernetes", "SLURM", "AMD"))


def test_a_scheduler_of_which_the_log_has_a_trace_may_have_ended_an_actor(verdict):
    found = verdict("SLURM_JOB_ID=77\nstep 1 loss 2.0\nThe actor is dead because its worker process has died.\n")
    assert any("slurm-oom-kill" in step for step in found.next)


@pytest.mark.parametrize(
    "log",
    [
        "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n",
        "*** SIGABRT received at time=1795060000 on cpu 3 ***\n",
    ],
)
def test_nothing_is_suspected_of_which_the_log_has_no_trace(verdict, log):
    assert not any(step.startswith("possible cause") for step in verdict(log).next)
