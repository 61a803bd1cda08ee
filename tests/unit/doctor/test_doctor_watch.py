"""Following live logs: speaks up once, reads what is appended, and survives rotation."""

import json
import socket
import threading

import pytest

from rldbg.core import IncompleteDataError
from rldbg.doctor import diagnose
from rldbg.doctor.jobs import job_facts
from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.scan import Scanner
from rldbg.doctor.watching import FollowedLog, watch

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def test_it_speaks_up_when_a_cause_has_been_appended(index, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("step:1 - fine\n")
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(watch([tmp_path], index=index, poll_s=0.02, settle_s=0.1)), daemon=True
    )
    thread.start()
    with log.open("a") as stream:
        stream.write(OOM)
    thread.join(timeout=60)
    assert [cause.id for cause in answers[0].root_causes] == ["torch-cuda-oom"]


def test_it_ends_with_the_job_and_reads_the_last_line_without_its_end(index, tmp_path):
    (tmp_path / "a.log").write_text("fine\n" + OOM.rstrip())
    found = watch([tmp_path], index=index, has_ended=lambda: True, poll_s=0.01)
    assert [cause.id for cause in found.root_causes] == ["torch-cuda-oom"]
    assert found.root_causes[0].evidence[0].line == 2


def test_a_cause_of_several_lines_is_found_while_the_job_goes_on(index, tmp_path):
    (tmp_path / "a.log").write_text(
        "optimizer offload to_cpu done after 1201.5s\n"
        "[rank2]:[E ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600007 milliseconds\n"
    )
    found = watch([tmp_path], index=index, poll_s=0.01, settle_s=0.05)
    assert [cause.id for cause in found.root_causes] == ["phase-longer-than-timeout"]


def test_a_job_that_ends_before_it_has_written_a_log_is_said_to_have_none(index, tmp_path):
    with pytest.raises(IncompleteDataError, match="no log files"):
        watch([tmp_path], index=index, has_ended=lambda: True, poll_s=0.01)


def test_only_whole_lines_are_read_and_each_once(index, tmp_path):
    log = tmp_path / "a.log"
    scanner = Scanner(index)
    log.write_text("x\n" + OOM[:30])
    followed = FollowedLog(scanner, LogSource(log))
    assert followed.advance()
    with log.open("a") as stream:
        stream.write(OOM[30:])
    assert followed.advance()
    assert not followed.advance()
    assert [(hit.entry, hit.place.line) for hit in scanner.evidence.hits] == [("torch-cuda-oom", 2)]


def test_a_log_that_was_cut_is_read_from_its_beginning(index, tmp_path):
    log = tmp_path / "a.log"
    scanner = Scanner(index)
    log.write_text("a line\n" * 100)
    followed = FollowedLog(scanner, LogSource(log))
    followed.advance()
    log.write_text(OOM)
    assert followed.advance()
    assert scanner.evidence.hits[0].place.line == 1


def test_a_run_folder_says_with_what_it_ran_and_whether_it_is_over(tmp_path):
    (tmp_path / "run.json").write_text('{"environment": {"http_proxy": "p"}, "hosts": ["elsewhere"], "ended_at": null}')
    facts = job_facts([tmp_path])
    assert (facts.environment, facts.is_local, facts.has_ended) == ({"http_proxy": "p"}, False, False)
    assert job_facts([tmp_path / "x.log"]).environment == {}


def test_a_run_folder_is_read_with_its_crash_files_and_without_its_own_records(index, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"environment": {"MOTD": OOM}, "hosts": []}))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "note": "CUDA out of memory. Tried to allocate"}\n')
    assert diagnose_or_none(tmp_path, index) is None
    crash = {"rank": 3, "exceptions": [{"type": "torch.OutOfMemoryError", "message": OOM.strip(), "frames": []}]}
    (tmp_path / "crashes").mkdir()
    (tmp_path / "crashes" / "policy-3.json").write_text(json.dumps(crash, indent=1))
    assert diagnose_or_none(tmp_path, index) == "torch-cuda-oom"


def diagnose_or_none(folder, index):
    try:
        found = diagnose([folder], index=index)
    except IncompleteDataError:
        return None
    return found.root_causes[0].id if found.root_causes else None


FAILED = {"exit_code": 1, "ended_at": 5.0, "hosts": []}
KILLED = {"armed": [], "ended_at": None, "hosts": [socket.gethostname()]}


@pytest.mark.parametrize("text", [json.dumps(FAILED), json.dumps(KILLED), "", '{"armed": ['])
@pytest.mark.parametrize("log", ["", "step 1\n"])
def test_a_run_that_failed_or_was_left_without_an_end_is_not_healthy(index, tmp_path, text, log):
    (tmp_path / "run.json").write_text(text)
    if log:
        (tmp_path / "output.log").write_text(log)
    found = diagnose([tmp_path], index=index)
    assert found.verdict == "unknown"
    assert ("exit code 1" if text.startswith('{"exit_code') else "could not write") in found.next[0]


def test_a_run_without_an_end_that_is_on_another_machine_or_has_ended_well_is_not_judged_by_it(index, tmp_path):
    (tmp_path / "output.log").write_text("step 1\n")
    for facts in (KILLED | {"hosts": ["elsewhere"]}, KILLED | {"ended_at": 5.0, "exit_code": 0}):
        (tmp_path / "run.json").write_text(json.dumps(facts))
        assert diagnose([tmp_path], index=index).verdict == "healthy"
