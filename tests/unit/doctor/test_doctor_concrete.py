"""What an exception says comes before the phase it was raised in, its wrapper, and the process that reports it."""

import pytest

from rldbg.doctor import diagnose


def _diagnosis(tmp_path, index, text):
    log = tmp_path / "job.log"
    log.write_text(text + "\n")
    return diagnose([log], index=index)


WRAPPED = """Traceback (most recent call last):
  File "/opt/frob-lm/frob/dist_checkpointing/strategies/writer.py", line 31, in save_parts
    raise RuntimeError(f"Part writer failed: {error}") from error
RuntimeError: Part writer failed: put_part() missing 1 required positional argument: 'layout'
"""


def test_a_wrong_call_while_a_checkpoint_is_written_is_told_as_such(tmp_path, index):
    inner = "[rank3]: TypeError: put_part() missing 1 required positional argument: 'layout'"
    for text in (WRAPPED, f"[rank1]: {WRAPPED}{inner}"):
        found = _diagnosis(tmp_path, index, text)
        assert [cause.id for cause in found.root_causes] == ["interface-mismatch"], text


REMOTE = """ray.exceptions.RayTaskError({kind}): ray::Runner.go() (pid=71, ip=10.1.0.2, actor_id=ab12)
  File "/w/verl/verl/trainer/main_ppo.py", line 99, in go
    trainer.fit()
  File "/w/verl/verl/workers/reward_manager/naive.py", line 12, in {function}
"""


def test_ray_says_the_type_of_a_traceback_that_is_cut_off(tmp_path, index):
    found = _diagnosis(tmp_path, index, REMOTE.format(kind="NotImplementedError", function="__call__"))
    assert [cause.id for cause in found.root_causes] == ["verl-reward-source-unknown"]
    found = _diagnosis(tmp_path, index, REMOTE.format(kind="KeyError", function="collect"))
    assert found.verdict == "unknown" and found.first_error.kind == "KeyError"
    assert any("it need not be the one that raised the exception" in step for step in found.next)


def test_frames_of_two_processes_are_kept_apart(tmp_path, index):
    lines = """(Engine pid=5)   File "/w/engine/core.py", line 8, in run_core
(Server pid=4)   File "/w/engine/client.py", line 3, in get_output
(Engine pid=5)     step()
(Server pid=4)     raise made(error)
(Engine pid=5)   File "/w/engine/worker.py", line 9, in step
(Engine pid=5)     return model(batch)"""
    found = _diagnosis(tmp_path, index, lines)
    assert [frame.rpartition(" ")[2] for frame in found.first_error.frames] == ["run_core", "step"]
    assert "cut off inside a traceback in Engine pid 5, last frame shown: step" in found.headline


@pytest.mark.parametrize(
    "path",
    ["/home/u/.triton/cache/ab/gemm.ttir.tmp.pid_7_9", "/scratch/torchinductor_u/cd/x.py.tmp", "/c/vllm/k.tmp.3"],
)
def test_a_temporary_file_that_is_gone_from_a_compile_cache_is_a_race(tmp_path, index, path):
    found = _diagnosis(tmp_path, index, f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'")
    assert [cause.id for cause in found.root_causes] == ["compile-cache-race"]


def test_a_temporary_file_of_something_else_is_not(tmp_path, index):
    found = _diagnosis(tmp_path, index, "FileNotFoundError: [Errno 2] No such file or directory: '/data/part-3.tmp'")
    assert "compile-cache-race" not in [cause.id for cause in found.root_causes]


def test_a_consequence_is_printed_with_what_usually_causes_it(tmp_path, index):
    found = _diagnosis(tmp_path, index, "core_worker.cc:1: Failed to register worker 01ff to Raylet. IOError: x")
    assert found.verdict == "unknown"
    assert any(step.startswith("possible cause of") for step in found.next)
    assert any("num_cpus=$SLURM_CPUS_PER_TASK" in step for step in found.next)


BUILDER = """Traceback (most recent call last):
  File "/w/train.py", line 9, in <module>
    main()
  File "/w/data/parts_dataset.py", line 31, in load_parts_dataset
    return parts['tokens'].lengths
KeyError: 'tokens'
"""


def test_a_key_that_a_dataset_builder_misses_may_mean_that_no_files_matched(tmp_path, index):
    found = _diagnosis(tmp_path, index, BUILDER)
    assert found.headline.startswith("likely cause") and "no files matched" in found.headline


def test_two_engines_of_one_job_can_meet_at_one_port(tmp_path, index):
    trace = """Traceback (most recent call last):
  File "/x/site-packages/sglang/srt/model_executor/model_runner.py", line 5, in init_torch_distributed
    init()
  File "/x/site-packages/torch/distributed/rendezvous.py", line 8, in _create_c10d_store
    return TCPStore(
RuntimeError: Ping failed, invalid nonce returned
"""
    found = _diagnosis(tmp_path, index, trace)
    assert found.headline.startswith("likely cause: Two engines on one node chose the same rendezvous port")


@pytest.mark.parametrize(
    "line",
    [
        "Grading failed: Sandbox sb-7 failed (TIMEOUT): it exceeded its maximum lifetime",
        "modal.exception.SandboxTimeoutError",
        "daytona.errors.DaytonaError: Sandbox 4f2a not found",
    ],
)
def test_a_sandbox_that_had_ended_is_named(tmp_path, index, line):
    found = _diagnosis(tmp_path, index, line)
    assert [cause.id for cause in found.root_causes] == ["sandbox-lifetime-ended"]


def test_a_sandbox_that_ended_between_steps_is_no_failure(tmp_path, index):
    steps = [f"training/global_step:{step} grad_norm:0.1\nSandbox exceeded its maximum lifetime" for step in range(5)]
    assert _diagnosis(tmp_path, index, "\n".join([*steps, "step:5 done"])).verdict == "healthy"


def test_a_gradient_that_was_nan_once_was_so_in_its_step_only(tmp_path, index):
    steps = [f"step:{step} - actor/grad_norm:{'nan' if step == 4 else 0.1}" for step in range(1, 12)]
    found = _diagnosis(tmp_path, index, "\n".join(steps))
    (note,) = [note for note in found.notes if note.id == "nan-gradients"]
    assert found.verdict == "healthy" and "in step 4" in note.detail and "on" not in note.detail.split()
