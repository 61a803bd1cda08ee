"""What a scheduler, a launcher or a shell writes, also at the end of a bar that another process draws."""

import pytest

from rldbg.doctor import diagnose
from rldbg.doctor.logs.cleaning import clean

BAR = "Train:   1%|          | 11/1342 [06:02<10:54:53,  3.21s/it]"
UNTOTALLED = "Reading: 90 examples [18:33, 12.64 examples/s]"
CANCELLED = "slurmstepd: error: *** JOB 77 ON gpu03 CANCELLED AT 2026-11-15T10:00:00 ***"
SIGNALLED = "[2026-11-15T10:00:00.9] error: *** JOB 7 ON gpu3 CANCELLED AT 2026-11-15T10:00:00 DUE to SIGNAL Term ***"
RAISED = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n    x["a"]\nKeyError: \'a\'\n'


@pytest.mark.parametrize("bar", [BAR, UNTOTALLED, BAR * 2])
def test_what_is_written_behind_a_bar_is_a_line_of_its_own(bar):
    assert clean(bar + CANCELLED).text == CANCELLED
    assert clean(bar + "[rank2]: boom").speaker.rank == "2"


@pytest.mark.parametrize("line", [BAR, UNTOTALLED, BAR * 2, BAR + " [repeated 3x]", "see a/b [1:2] and c"])
def test_a_bar_alone_is_kept(line):
    assert clean(line).text == line


@pytest.mark.parametrize("end", [CANCELLED, SIGNALLED, BAR + CANCELLED], ids=["scancel", "signal", "behind a bar"])
def test_a_job_that_was_cancelled_says_so(verdict, end):
    found = verdict(f"loading\n{BAR}\n{end}\n")
    assert [cause.id for cause in found.fallout] == ["slurm-job-stopped"]
    assert "cancelled" in found.headline


def test_what_the_scheduler_writes_after_the_cancellation_is_its_consequence(verdict):
    found = verdict(f"{BAR}{CANCELLED}\nslurmstepd: error: container_g_join(77): No such file or directory\n")
    assert [cause.id for cause in found.fallout] == ["slurm-job-stopped"]


def test_a_failure_before_the_cancellation_is_the_cause(verdict):
    found = verdict(RAISED + "srun: error: gpu03: task 1: Exited with exit code 1\n" + CANCELLED + "\n")
    assert "KeyError" in found.headline


def test_a_signal_to_the_launcher_is_told(verdict):
    said = "[2026-11-15 10:00:00,902] [INFO] [launch.py:328:sigkill_handler] Main process received SIGINT, exiting\n"
    assert [cause.id for cause in verdict("{'loss': 0.3, 'epoch': 0.1}\n" + said).fallout] == ["launcher-was-ended"]


def test_who_sent_a_signal_is_no_question_where_the_user_did(tmp_path, index):
    (tmp_path / "x.log").write_text(RAISED + "W0227 api.py:719] Received 2 death signal, shutting down workers\n")
    found = [diagnose([tmp_path / "x.log"], index=index, exit_code=1, ended_by_user=each) for each in (False, True)]
    told = [[cause.id for cause in each.fallout] for each in found]
    assert told == [["launcher-was-ended"], []]
    assert found[0].headline == found[1].headline and "KeyError" in found[1].headline


def test_a_command_that_a_script_cannot_start_is_named(verdict):
    log = "/opt/entry.sh: line 67: exec: FROB=1: not found\n\nscontrol show job 85\nJobId=85 JobName=x.sh\n   Nodes=1\n"
    assert verdict(log).root_causes[0].id == "launch-script-failed"


def test_an_error_with_a_list_under_it_is_the_end(verdict):
    items = "".join(f"  part{number}: directory not found\n" for number in range(40))
    assert "parts are missing" in verdict("reading\nERROR: Some parts are missing:\n" + items).headline
    assert verdict("ERROR: Some parts are missing:\n" + items + "trained without them\n").verdict == "healthy"


def test_a_logger_that_takes_a_stream_gives_its_lines_no_level(verdict):
    relayed = "2026-11-15 10:00:00 | ERROR | stderr | "
    assert verdict(relayed + "INFO:     Uvicorn running on http://0.0.0.0:1\n").verdict == "healthy"
    assert verdict(relayed + BAR + "\n").verdict == "healthy"
    assert "boom" in verdict(relayed + "ERROR: boom\n").headline


def test_a_card_that_cannot_be_asked_is_why_a_program_finds_no_gpu(verdict):
    warned = "/v/torch/cuda/__init__.py:18: UserWarning: CUDA initialization: CUDA unknown error - this may be\n"
    raised = "NotImplementedError: Unsloth cannot find any torch accelerator? You need a GPU.\n"
    assert [cause.id for cause in verdict(warned + raised).root_causes] == ["cuda-not-initialised"]
    assert verdict(warned + "training on the CPU instead\n{'loss': 0.3, 'epoch': 0.1}\n").verdict == "healthy"


def test_a_function_that_the_compiler_only_passes_through_is_not_its_own(verdict):
    log = """Traceback (most recent call last):
  File "/w/train.py", line 3, in <module>
    trainer.evaluate()
  File "/v/site-packages/torch/_dynamo/eval_frame.py", line 745, in _fn
    return fn(*args, **kwargs)
  File "/v/site-packages/{raiser}.py", line 36, in fetch
    raise RuntimeError(
RuntimeError: {said}
"""
    traced = verdict(log.format(raiser="deepspeed/runtime/zero/coordinator", said="tracing error at step 1411: "))
    assert traced.root_causes[0].id == "zero3-inflight-params"
    other = verdict(log.format(raiser="deepspeed/utils/frob", said="the frob is out of order"))
    assert "torch-compile-failed" not in [cause.id for cause in other.root_causes]


STEPS = "".join(f"step {number} loss 0.4\n" for number in range(1, 9))


def scontrol(state, code):
    return f"""JobId=42 JobName=grpo
   JobState={state} Reason=Frob Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}
   RunTime=00:10:00 TimeLimit=01:00:00 TimeMin=N/A
"""


def sacct(state, code):
    short = state if len(state) <= 10 else f"{state[:9]}+"
    rows = "".join(f"{job:<12} {'python':>10} {short:>10} {code:>8}   00:10:00\n" for job in ("42", "42.batch"))
    return f"JobID           JobName      State ExitCode    Elapsed\n{rows}"


def separated(state, code):
    return f"JobID|State|ExitCode\n42|{state}|{code}\n42.0|{state}|{code}\n"


@pytest.mark.parametrize("epilogue", [scontrol, sacct, separated])
@pytest.mark.parametrize(
    ("state", "code", "told"),
    [
        ("OUT_OF_MEMORY", "0:125", "memory ran out"),
        ("FAILED", "0:9", "ended by signal 9"),
        ("FAILED", "127:0", "SLURM says that the job failed"),
        ("TIMEOUT", "0:0", "time limit"),
        ("NODE_FAIL", "1:0", "A node of the SLURM job failed"),
        ("PREEMPTED", "0:0", "preempted"),
        ("CANCELLED", "0:15", "cancelled"),
        ("COMPLETED", "0:0", "no failure found"),
        ("RUNNING", "0:0", "no failure found"),
    ],
)
def test_what_slurm_says_of_a_job_at_its_end_is_read(verdict, epilogue, state, code, told):
    assert told in verdict(STEPS + epilogue(state, code)).headline
    begun = verdict(epilogue(state, code) + STEPS)
    assert begun.verdict == "healthy", "it is of an earlier job"
    if state == "FAILED":
        raised = RAISED.replace("KeyError: 'a'", "torch.OutOfMemoryError: CUDA out of memory.")
        named = verdict(STEPS + raised + epilogue(state, code))
        assert [cause.id for cause in named.root_causes] == ["torch-cuda-oom"]


def test_a_job_that_ended_with_zero_and_without_memory_did_not_end_well(verdict):
    assert "memory ran out" in verdict(STEPS + "Job ID: 42\nState: OUT_OF_MEMORY (exit code 0)\n").headline
