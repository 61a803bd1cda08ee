"""A process that died without a traceback: who it was, what can have ended it, and what confirms each."""

import pytest

WORKER = (
    "ERROR 09-02 11:20:16 [frob_executor.py:140] Worker proc FrobWorker-3 died unexpectedly, shutting down executor.\n"
)
WAIT = "DEBUG 09-02 11:21:10 [shm.py:45] No available seam block found in 60 second.\n"
SCHEDULER = "[09-02 11:20:16] Rank 5 scheduler is dead. Please check if there are relevant logs.\n"


def said(found):
    return found.headline + "\n" + "\n".join(found.next)


@pytest.mark.parametrize("log", [WORKER + WAIT, WAIT + WORKER, SCHEDULER], ids=["last", "first", "scheduler"])
def test_candidates_stand_there_with_what_confirms_each(verdict, log):
    found = verdict(log)
    assert (found.verdict, found.root_causes) == ("unknown", ())
    words = said(found)
    assert all(word in words for word in ("killed process", "free -g", "segfault", "xid", "PYTHONFAULTHANDLER"))
    assert "<pid>" not in words
    assert "read the traceback" not in words
    assert "find the first traceback" not in words


@pytest.mark.parametrize(
    ("line", "who"),
    [
        (WORKER, "FrobWorker-3"),
        (SCHEDULER, "rank 5"),
        (
            "ERROR core_client.py:4] Engine core proc EngineCore_DP2 died unexpectedly, shutting down client.\n",
            "EngineCore_DP2",
        ),
        ("ERROR mp.py:1] Worker FrobProcess pid 4121 died, exit code: -6\n", "4121"),
        ("ERROR engine.py:8] Scheduler or DataParallelController 2213 terminated with -11\n", "2213"),
    ],
)
def test_who_died_is_named(verdict, line, who):
    found = verdict(line)
    assert found.root_causes == ()
    assert who in said(found)


@pytest.mark.parametrize(
    "code",
    [
        "[09-02 11:20:17] Exit code: -9\n",
        "[09-02 11:20:17] Exit code: 137\n",
        "Rank 5 scheduler exited with exit code -9\n",
    ],
)
def test_signal_9_leads_to_the_memory_of_the_host_and_to_nothing_else(verdict, code):
    words = said(verdict(SCHEDULER + code))
    assert "SIGKILL" in words
    assert "free -g" in words
    assert "segfault" not in words
    assert "xid" not in words.lower()


@pytest.mark.parametrize(
    "log",
    [
        "ERROR engine.py:8] Scheduler or DataParallelController 2213 terminated with -11\n",
        f"{SCHEDULER}[09-02 11:20:17] Exit code: -11\n",
    ],
)
def test_a_signal_of_native_code_leads_to_that(verdict, log):
    words = said(verdict(log))
    assert "SIGSEGV" in words
    assert "free -g" not in words


def test_with_a_traceback_that_one_is_told(verdict):
    log = f"""(FrobWorker-3 pid=31) Traceback (most recent call last):
(FrobWorker-3 pid=31)   File "/w/seam.py", line 4, in sew
(FrobWorker-3 pid=31)     return seams[7]
(FrobWorker-3 pid=31) WibbleError: no such seam
{WORKER}"""
    words = said(verdict(log))
    assert "no such seam" in words
    assert "dmesg" not in words


def test_the_exit_code_of_processes_that_were_told_to_end_is_not_the_dead_one_s(verdict):
    words = said(
        verdict(f"{WORKER}ERROR: failed (exitcode: -15) local_rank: 2 (pid: 91) of binary: /usr/bin/python3\n")
    )
    assert "FrobWorker-3" in words
    assert "is signal 15" not in words.partition("FrobWorker-3 died without")[2].partition("\n")[0]
