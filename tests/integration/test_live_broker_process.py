"""One broker per run: a silent one is not dead, a dead one is replaced at once, and breakpoints survive it."""

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from live_job import LOOP, PATIENCE_S, LiveJob, looping_job, until

from rldbg.agent import BrokerAddress
from rldbg.core import Run, UnreachableError
from rldbg.live import BrokerClient, start_broker, stop_broker


def _brokers(folder):
    return [p for p in psutil.process_iter() if _is_broker_of(p, folder)]


def _is_broker_of(process, folder):
    try:
        # Read once: a process that ends in between has no words left.
        words = process.cmdline()
        return "rldbg.live.service" in words and str(folder) in words[-1]
    except psutil.Error:
        return False


def test_a_broker_that_is_stopped_is_not_replaced(tmp_path):
    with looping_job(tmp_path) as job:
        job.client.request("pause", who="loop")
        pid = job.broker_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            # WHEN the broker is silent THEN nobody starts a twin, and the first command says what is the matter
            begin = time.monotonic()
            start_broker(job.run, owner_pid=os.getpid())
            assert time.monotonic() - begin < PATIENCE_S / 2
            assert [broker.pid for broker in _brokers(tmp_path)] == [pid] and job.broker_pid() == pid
            with pytest.raises(UnreachableError, match="is running and does not answer"):
                BrokerClient(job.run.path)
        finally:
            os.kill(pid, signal.SIGCONT)
        # AND what is stopped is still known to be
        assert [p["who"] for p in job.wait_stopped()] == ["loop"]


def test_all_who_start_a_broker_at_once_get_the_same_one(tmp_path):
    run = Run.create(name="test", path=tmp_path / "run")
    with ThreadPoolExecutor(4) as pool:
        addresses = list(pool.map(lambda _: start_broker(run, owner_pid=os.getpid()), range(4)))
    try:
        assert len(set(addresses)) == 1
        until(lambda: len(_brokers(tmp_path)) == 1, "the others to give up")
    finally:
        stop_broker(run.path)


def test_a_dead_broker_is_replaced_at_once_and_breakpoints_stay(tmp_path):
    with looping_job(tmp_path) as job:
        script = str(tmp_path / "loop.py")
        job.client.request("break_set", file=script, line=4, ranks="loop", **{"if": "i < 0"})
        job.client.request("break_set", file=script, line=5, **{"if": "total == -1"})
        job.client.request("break_clear", ids=[1])
        job.kill_broker()
        until(lambda: not _brokers(tmp_path), "the broker to be dead")
        # WHEN it is dead THEN the first command says so at once
        begin = time.monotonic()
        with pytest.raises(UnreachableError, match="does not answer"):
            BrokerClient(job.run.path)
        with pytest.raises(UnreachableError, match="lost"):
            job.client.request("ps")
        assert time.monotonic() - begin < PATIENCE_S / 2
        # AND the next one has the breakpoints and finds the processes
        start_broker(job.run, owner_pid=os.getpid())
        with BrokerClient(job.run.path) as client:
            kept = client.request("break_list")["breaks"]
            assert [(each["id"], each["line"], each["if"]) for each in kept] == [(2, 5, "total == -1")]
            until(lambda: client.request("break_list")["breaks"][0]["set_in"] == {"loop": True}, "the breakpoint")
            client.request("break_condition", id=2, condition="total >= 0")
            until(lambda: client.request("ps")["processes"][0]["line"] == 5, "the stop")
            client.request("break_clear")
            client.request("continue", who="all")


def test_a_command_waits_for_the_next_broker_while_the_run_is_alive(tmp_path, monkeypatch):
    run = Run.create(name="test", path=tmp_path / "run")
    run.start(command=["train.py"])
    owner = subprocess.Popen(["sleep", "600"])
    looked_in_vain = threading.Event()

    def sleep(seconds):
        looked_in_vain.set()
        time.sleep(seconds)

    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr("rldbg.live.client.broker_client.time", clock)
    # However long a broker takes to start here.
    monkeypatch.setattr("rldbg.live.client.broker_client._REPLACED_S", 10 * PATIENCE_S)
    try:
        # GIVEN a killed broker of a run that is alive
        start_broker(run, owner_pid=owner.pid)
        _kill_broker(run)
        with ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(BrokerClient, run.path)
            assert looked_in_vain.wait(PATIENCE_S)
            # WHEN the next one is there THEN it answers
            start_broker(run, owner_pid=owner.pid)
            with connecting.result(PATIENCE_S) as client:
                assert client.request("ps")["processes"] == []
        # BUT nobody waits for the broker of a run that was killed too
        _kill_broker(run)
        owner.kill()
        owner.wait()
        looked_in_vain.clear()
        with pytest.raises(UnreachableError, match="does not answer"):
            BrokerClient(run.path)
        assert not looked_in_vain.is_set()
    finally:
        owner.kill()
        owner.wait()


def _kill_broker(run):
    for broker in _brokers(run.path):
        broker.kill()
    until(lambda: not _brokers(run.path), "the broker to be dead")


ROUNDS = """
import pathlib, time
def body(i):
    i += 1
    time.sleep(0.5)
    pathlib.Path("rounds").write_text(str(i))
    return i
i = 0
while True:
    i = body(i)
"""


def _rounds(folder):
    file = folder / "rounds"
    return int(file.read_text() or 0) if file.exists() else 0


@pytest.mark.parametrize(("command", "line"), [("", 5), ("n", 6)])
def test_a_stop_outlives_its_broker_and_does_not_come_again(tmp_path, command, line):
    with LiveJob(tmp_path) as job:
        script = str(job.write("rounds.py", ROUNDS))
        job.start(script)
        until(job.ps, "the agent")
        job.client.request("break_set", file=script, line=4, **{"if": "i < 0"})
        job.client.request("break_set", file=script, line=5)
        job.wait_stopped()
        job.client.request("break_clear", ids=[2])
        if command:
            job.rldbg("attach", "rounds", "--wait", "0.1", "-c", command, check=False)
        # WHEN the broker dies while a rank stands or steps, and the next one sets the other breakpoint again
        job.kill_broker()
        start_broker(job.run, owner_pid=os.getpid())
        with BrokerClient(job.run.path) as client:
            until(lambda: client.request("break_list")["breaks"][0]["set_in"] == {"rounds": True}, "the breakpoint")
            # THEN the rank stands where it stood or where its step has ended
            until(lambda: client.request("ps")["processes"][0]["line"] == line, "the stop")
            client.request("continue", who="all")
            # AND then goes on: the condition of the other one is false
            seen = _rounds(tmp_path)
            until(lambda: _rounds(tmp_path) >= seen + 3, "three more rounds")
            assert not client.request("break_list")["breaks"][0]["hits"]


def test_once_is_once_and_log_points_speak_across_brokers(tmp_path):
    with LiveJob(tmp_path) as job:
        script = str(job.write("rounds.py", ROUNDS))
        job.start(script)
        until(job.ps, "the agent")
        job.client.request("break_set", file=script, line=5, once=True)
        job.client.request("break_set", file=script, line=6, log="round {i}")
        job.wait_stopped()
        # WHEN the broker dies while the rank stands at a breakpoint that stops once
        job.kill_broker()
        start_broker(job.run, owner_pid=os.getpid())
        with BrokerClient(job.run.path) as client:
            until(lambda: [each["line"] for each in client.request("ps")["processes"]] == [5], "the stop")
            client.request("continue", who="all")
            # THEN it does not stop again
            seen = _rounds(tmp_path)
            until(lambda: _rounds(tmp_path) >= seen + 3, "three more rounds")
            assert client.request("break_list")["breaks"][0]["hits"] == {"rounds": 1}
        # AND what a log point says while there is no broker reaches the next one
        job.kill_broker()
        until(lambda: not _brokers(tmp_path), "the broker to be dead")
        begun = _rounds(tmp_path)
        until(lambda: _rounds(tmp_path) >= begun + 3, "rounds without a broker")
        start_broker(job.run, owner_pid=os.getpid())
        log = job.run.path / "logs" / "log_points.jsonl"
        until(lambda: f"round {begun + 2}" in log.read_text(), "what was said without a broker")


def test_breakpoints_end_with_the_broker_that_was_told_to_end(tmp_path):
    with LiveJob(tmp_path) as job:
        job.client.request("break_set", file="x.py", line=4)
        stop_broker(job.run.path)
        start_broker(job.run, owner_pid=os.getpid())
        with BrokerClient(job.run.path) as client:
            assert not client.request("break_list")["breaks"]


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 on this host")
def test_a_broker_on_all_interfaces_of_ipv6_is_reached(tmp_path):
    with LiveJob(tmp_path, host="::") as job:
        assert ":" in BrokerAddress.read(job.run.path).host
        job.start(job.write("loop.py", LOOP))
        until(lambda: any(p["who"] == "loop" for p in job.ps()), "the agent")
        assert BrokerAddress.read(job.run.path).place.startswith("[")
