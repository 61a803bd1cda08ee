"""A driver of Ray that was ended by SIGTERM; what its workers print when they are ended at the end is no failure."""

import pytest

from rldbg.doctor import diagnose

STEPS = "".join(f"(Runner pid=31) step:{step} - actor/pg_loss:0.1\n" for step in range(1, 4))
STACK = "PC: @     0x7f0e7b9b2a47  (unknown)  epoll_wait\n    @     0x7f0e7b8dc520  (unknown)  (unknown)\n"
ENDED = f"*** SIGTERM received at time=1795060000 on cpu 3 ***\n{STACK}"
LOGGED = "[2026-11-18 10:10:45,112 E 77 77] logging.cc:474: *** SIGTERM received at time=1795060000 on cpu 3 ***\n"


@pytest.mark.parametrize("ended", [ENDED, LOGGED, ENDED + LOGGED])
@pytest.mark.parametrize("exit_code", [None, 134])
def test_a_driver_that_was_ended_is_a_victim(tmp_path, index, ended, exit_code):
    log = tmp_path / "driver.log"
    log.write_text(STEPS + ended)
    found = diagnose([log], index=index, exit_code=exit_code)
    assert (found.verdict, [each.id for each in found.fallout]) == ("unknown", ["driver-was-ended"])
    assert "ended by SIGTERM, from outside" in found.headline
    assert "sacct" in found.next[0]


@pytest.mark.parametrize("prefix", ["(FrobWorker pid=41) ", "(FrobWorker pid=41, ip=10.0.0.3) "])
def test_a_worker_that_is_ended_at_the_end_is_no_failure(verdict, prefix):
    ended = "".join(f"{prefix}{line}\n" for line in (ENDED + LOGGED).splitlines())
    assert verdict(f"(Runner pid=31) the model was saved\n{ended}").verdict == "healthy"


def test_a_log_of_a_worker_says_nothing_of_the_driver(tmp_path, index):
    log = tmp_path / "worker-4f00-01000000-41.err"
    log.write_text(ENDED + LOGGED)
    assert diagnose([log], index=index).verdict == "healthy"


def test_what_was_ended_after_training_is_done_is_no_failure(verdict):
    done = "(Runner pid=31) Training Progress: 100%|██████| 3/3 [00:20<00:00, 7.0s/it]\n"
    assert (
        verdict(f"{STEPS}{done}(Runner pid=31) Final validation metrics: {{'acc': 0.5}}\n{ENDED}").verdict == "healthy"
    )


def test_an_exception_before_the_signal_is_where_it_begins(verdict):
    raised = (
        'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\nValueError: 7 wibbles do not fit\n'
    )
    assert "7 wibbles do not fit" in verdict(f"{STEPS}{raised}{ENDED}").headline


def test_a_crash_is_told_by_its_stack(verdict):
    found = verdict(f"{STEPS}*** SIGSEGV received at time=1795060000 on cpu 3 ***\n{STACK}")
    assert [each.id for each in found.fallout] == ["process-segfault"]
