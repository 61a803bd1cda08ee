"""Engines and other parts that are gone: banners of crashes, what they were asked before, how long others waited."""

import pytest

from rldbg.doctor import diagnose

LAST_LINES = (
    "Tool server lost connection to scorer-7 and has no other one",
    "MPClient: engine core exited unexpectedly",
    "2026-05-02 11:00:01 WARNING rollout replica 3 is dead",
    "sandbox sb-77 not found or expired",
    "checkpoint uploader gave up after 5 retries",
    "!!!!!!! Segfault encountered !!!!!!!",
    "Code execution failed: Sandbox sb-9 failed (TIMEOUT): no answer",
    "the judge endpoint is no longer available",
)
HEALTHY = (
    "replica 3 lost connection to the router, reconnecting",
    "worker 4 is dead\nworker 4 was restarted",
    "sandbox sb-1 not found or expired\nnew sandbox sb-2 is ready",
    "INFO old checkpoint is no longer available",
    "/x/frob.py:3: UserWarning: frob.old is no longer available\n  frob.old()",
    "the flag --old is no longer available",
    "worker 3 is dead, continuing without it",
    "replica 3 is dead\nstep: 11 loss: 0.2\nstep: 12 loss: 0.2\nstep: 13 loss: 0.1",
    "Training Progress: 100%|##########| 5/5 [10:00<00:00]\nthe judge endpoint is no longer available",
)


def _diagnosis(tmp_path, index, text):
    log = tmp_path / "job.log"
    log.write_text(text + "\n")
    return diagnose([log], index=index)


@pytest.mark.parametrize("line", LAST_LINES)
def test_a_log_that_ends_with_a_part_that_is_gone_is_not_healthy(tmp_path, index, line):
    found = _diagnosis(tmp_path, index, f"server started\nsending requests\n{line}")
    assert found.verdict != "healthy"


@pytest.mark.parametrize("text", HEALTHY)
def test_a_part_that_came_back_or_is_not_needed_is_no_failure(tmp_path, index, text):
    assert _diagnosis(tmp_path, index, f"server started\nstep: 9 loss: 0.3\nstep: 10 loss: 0.3\n{text}").verdict == (
        "healthy"
    )


@pytest.mark.parametrize(
    ("frame", "blamed"),
    [
        ('  File "/libshare/src/limits/count.c", line 12, in count_memory', "libshare (count_memory)"),
        ('  File "<unknown>", line 0, in ncclSendProxy', "NCCL (ncclSendProxy)"),
        ("#4 0x00007f in pncclSend () from /usr/lib/x86_64-linux-gnu/libnccl.so.2", "libnccl.so (pncclSend)"),
        ("/opt/hook/libhook.so(+0x1f3a) [0x7f12]", "libhook.so"),
        ('  File "/x/site-packages/frob_ep/buffer.py", line 6 in dispatch', "frob_ep (dispatch)"),
    ],
)
def test_the_first_library_of_a_native_stack_is_named(tmp_path, index, frame, blamed):
    runtime = "#1 0x00007f in raise () from /lib/x86_64-linux-gnu/libc.so.6\n#2 0x00007e in run () from libpthread.so.0"
    found = _diagnosis(tmp_path, index, f"starting\n!!!!!!! Segfault encountered !!!!!!!\n{runtime}\n{frame}\nend")
    assert f"names {blamed} first" in found.headline
    assert found.root_causes or any(f"it crashed in {blamed}:" in step for step in found.next)


REQUESTS = """(Api pid=4) "POST /sleep?level=2 HTTP/1.1" 200 OK
{between}
(Api pid=4) "POST /update_weights HTTP/1.1"
!!!!!!! Segfault encountered !!!!!!!
  File "<unknown>", line 0, in cuMemcpyDtoDAsync_v2
"""


def test_weights_for_an_engine_that_sleeps_are_the_cause_of_its_death(tmp_path, index):
    found = _diagnosis(tmp_path, index, REQUESTS.format(between="trainer: sending"))
    assert [cause.id for cause in found.root_causes] == ["engine-used-while-asleep"]


@pytest.mark.parametrize(
    "between", ['(Api pid=4) "POST /wake_up HTTP/1.1" 200 OK', "(Api pid=4) 1.2 seconds to wake up"]
)
def test_an_engine_that_was_woken_was_not_asleep(tmp_path, index, between):
    found = _diagnosis(tmp_path, index, REQUESTS.format(between=between))
    assert "engine-used-while-asleep" not in [cause.id for cause in (*found.root_causes, *found.notes)]


def test_another_engine_that_sleeps_is_not_the_one_that_was_asked(tmp_path, index):
    text = REQUESTS.format(between="").replace('pid=4) "POST /update', 'pid=5) "POST /update')
    assert not _diagnosis(tmp_path, index, text).root_causes


WATCHDOG = (
    "{said}\n[rank2]:[E ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600007 milliseconds\n"
)


@pytest.mark.parametrize(
    "said",
    [
        "Worker[rank=0]: optimizer offload to_cpu done after 1201.5s",
        "rank 0: saving the checkpoint took 22 minutes",
        "torch.compile took 701.2 seconds",
        "[rank 1] loading dataset shards finished in 0.5 hours",
    ],
)
def test_a_phase_that_took_longer_than_the_wait_is_the_likely_cause(tmp_path, index, said):
    found = _diagnosis(tmp_path, index, WATCHDOG.format(said=said))
    assert [cause.id for cause in found.root_causes] == ["phase-longer-than-timeout"]
    assert found.headline.startswith("likely cause") and "gave up after 600 s" in found.headline


@pytest.mark.parametrize(
    "said",
    [
        "Worker[rank=0]: optimizer offload to_cpu done after 12.5s",
        "optimizer offload to_cpu took 1201 milliseconds",
        "checkpoint timeout after 1800 seconds is set",
        "rollout took 900 seconds",
    ],
)
def test_a_shorter_phase_or_a_limit_is_not(tmp_path, index, said):
    found = _diagnosis(tmp_path, index, WATCHDOG.format(said=said))
    assert "phase-longer-than-timeout" not in [cause.id for cause in found.root_causes]
