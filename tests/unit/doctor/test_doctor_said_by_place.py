"""What a failure is called depends on where it was raised, whose programs are in the log, and what left traces."""

import pytest

JUDGE = """(main_task pid=8) Retrying request to /chat/completions in 0.4 seconds
Error executing job with overrides: ['data.train_batch_size=8']
Traceback (most recent call last):
  File "{}", line 213, in {}
    answer = client.chat.completions.create(model=name)
  File "/v/lib/python3.12/site-packages/openai/_base_client.py", line 990, in request
    raise APITimeoutError(request=request) from err
openai.APITimeoutError: Request timed out.

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""


def ids(found):
    return [cause.id for cause in found.root_causes]


def test_who_made_the_call_says_which_server_did_not_answer(verdict):
    scoring = verdict(JUDGE.format("/w/frob/utils/reward_score/taste.py", "ask_taste"))
    assert ids(scoring) == ["reward-judge-unreachable"] and scoring.first_error is None
    rolling = verdict(JUDGE.format("/w/frob/rollout/client.py", "generate"))
    assert rolling.verdict == "unknown"
    assert [cause.id for cause in rolling.fallout] == ["engine-does-not-answer"]
    assert rolling.first_error is None, "the banner is no exception"


def test_the_banner_of_hydra_alone_is_a_failure_without_an_exception(verdict):
    found = verdict("step 1 loss 0.2\n" + JUDGE.splitlines(keepends=True)[1])
    assert found.verdict == "unknown" and found.first_error is None
    assert any("HYDRA_FULL_ERROR" in step for step in found.next)


FATAL = "[2026-05-06 07:14:27,052 C 2915 2915] {}\n"
STACK = "*** StackTrace Information ***\n/v/ray/_raylet.so(+0x101ab3a) [0x7f] ray::operator<<()\n"
ABORTED = "./run.sh: line 61: 2915 Aborted                 (core dumped) python3 -m frob.main\n"


@pytest.mark.parametrize("end", ["", STACK, STACK + ABORTED, ABORTED], ids=["bare", "stack", "both", "shell"])
def test_a_fatal_line_of_ray_is_a_failure_known_or_not(verdict, end):
    socket = "raylet_client.cc:60: Could not connect to socket /tmp/ray/session_2026-05-01_1/sockets/raylet.3"
    assert ids(verdict("step 1 loss 0.2\n" + FATAL.format(socket) + end)) == ["ray-raylet-socket-missing"]
    other = verdict("step 1 loss 0.2\n" + FATAL.format("frob_manager.cc:44: The frob has wobbled") + end)
    assert other.verdict == "unknown"
    if end != ABORTED:
        assert "The frob has wobbled" in other.first_error.headline


def test_a_fatal_line_of_glog_at_the_end_is_a_failure(verdict):
    assert verdict("step 1 loss 0.2\nF0506 07:14:27.052 2915 frob.cc:44] The frob has wobbled\n").verdict == "unknown"


KERNEL = """(Worker_TP4) ERROR [multiproc_executor.py:863] Traceback (most recent call last):
  File "/v/lib/python3.12/site-packages/{0}/models/frobformer.py", line 601, in frob_attention
    self._forward_core(
  File "/v/lib/python3.12/site-packages/{0}/layers/ops/chunk.py", line 212, in chunk_frob_rule
    FrobRule.apply(
torch.AcceleratorError: CUDA error: an illegal memory access was encountered
"""


@pytest.mark.parametrize(("engine", "flag"), [("vllm", "VLLM_ATTENTION_BACKEND"), ("sglang", "mem_fraction_static")])
def test_an_illegal_access_names_the_layer_and_the_flags_of_its_engine(verdict, engine, flag):
    cause = verdict(KERNEL.format(engine)).root_causes[0]
    assert cause.id == "illegal-memory-access"
    assert "chunk_frob_rule" in cause.detail and "frob_attention" in cause.detail
    advice = " ".join(cause.fix)
    assert flag in advice and ("mem_fraction_static" in advice) == (engine == "sglang")


STUCK = (
    "[rank6]:[E429 13:55:49.3 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0 Rank 6] ProcessGroupNCCL's watchdog got "
    "stuck for 240 seconds without making progress in monitoring enqueued collectives.\n"
)
WATCHDOG = (
    "[rank1]:[E1115 10:00:09.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=26, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600007 ms.\n"
)


def test_a_stuck_watchdog_is_a_symptom(verdict):
    found = verdict("step 31 loss 0.1\n" + STUCK)
    assert found.verdict == "unknown" and [cause.id for cause in found.fallout] == ["nccl-watchdog-stuck"]


def test_what_left_no_trace_in_the_logs_is_no_candidate(verdict):
    bare = "\n".join(verdict("step 1 loss 0.2\n" + WATCHDOG).next)
    assert not any(name in bare for name in ("(tms-", "(torch-cuda-oom)", "(nccl-slow-checkpoint)"))
    noted = "\n".join(verdict("torch_memory_saver is enabled\n" + WATCHDOG).next)
    assert "(tms-cu-mem-create-oom)" in noted
    nan = "{'loss': 0.0, 'grad_norm': nan, 'reward': 0.75, 'reward_std': 0.29}\n"
    assert not any("(nan-gradients)" in step or "group-of-one" in step for step in verdict(nan).next)


def test_a_launcher_that_was_ended_is_told_as_a_victim(verdict):
    text = "INFO Waiting for a batch\nW1130 12:13:49.3 12 api.py:723] Received 15 death signal, shutting down\n"
    found = verdict(text)
    assert found.verdict == "unknown" and "victim" in found.next[0]
    assert not any("terminal-closed" in step for step in found.next)
