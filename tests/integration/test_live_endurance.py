"""Whoever dies, at whatever moment, takes nobody along; sessions never wedge; nothing is left behind."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from live_job import LOOP, LiveJob, output, until

from rldbg.core import RldbgError, UsageError
from rldbg.live import BrokerClient, broadcast, start_broker


@pytest.fixture
def job(tmp_path):
    with LiveJob(tmp_path) as job:
        yield job


def _start(job, count):
    ranks = job.ranks(job.write("loop.py", LOOP), count)
    until(lambda: len([p for p in job.ps() if p["rank"] is not None]) == count, "all agents")
    return ranks


def _state(job):
    return job.ps()[0]


def _state_of(job, rank):
    return next((p for p in job.ps(all=True) if p["rank"] == rank), {})


def test_orders_that_make_no_sense_do_not_wedge_a_session(job):
    _start(job, 1)
    with pytest.raises(RldbgError, match="matches no stopped process"):
        job.client.request("continue", who="0")
    job.client.request("attach", who="0", stop=True)
    for how in ("evaluate", "launch", "terminate"):
        with pytest.raises(UsageError):
            job.client.request("resume", who="0", how=how)
    with pytest.raises(UsageError, match="does not understand"):
        job.client.request("dap", who="0", command="restartFrame", arguments={})
    # Two clients continue the same stop at once: one wins, the other hears that it is not stopped.
    with BrokerClient(job.run.path) as other:
        outcomes = []

        def go(client):
            try:
                outcomes.append(client.request("resume", who="0", how="continue")["state"])
            except UsageError as error:
                outcomes.append(str(error))

        with ThreadPoolExecutor() as pool:
            list(pool.map(go, (job.client, other)))
    assert len(outcomes) == 2
    # The session still answers after all that.
    job.client.request("attach", who="0", stop=True)
    assert broadcast(job.client, "0", "p 1 + 1").answers[0].value == 2
    job.client.request("continue", who="0")


def test_reading_values_of_a_running_process_is_refused_not_hung(job):
    _start(job, 1)
    job.client.request("break_set", file=str(job.folder / "loop.py"), line=4, **{"if": "False"})
    with pytest.raises(UsageError, match="running"):
        job.client.request("dap", who="0", command="evaluate", arguments={"expression": "1", "frameId": 1})


def test_a_value_that_cannot_be_shown_neither_wedges_nor_frees_a_rank(job):
    script = job.write(
        "train.py",
        """
import time
class Hangs:
    def __repr__(self):
        while True: time.sleep(0.01)
class Raises:
    def __repr__(self): raise RuntimeError("no")
def step(hangs, raises):
    text = "é" * 200_000
    breakpoint()
step(Hangs(), Raises())
print("ENDED", flush=True)
""",
    )
    process = job.start(script)
    job.wait_stopped()

    def ask(command, **arguments):
        return job.client.request("dap", who="train", command=command, arguments=arguments, limit_s=0.2)

    with pytest.raises(RldbgError, match="TookTooLong"):
        ask("evaluate", expression="repr(hangs)", frameId="stopped", context="watch")
    # As `locals` asks: the debugger's own list of names, then our summaries of the values.
    locals_ = next(scope for scope in ask("scopes", frameId="stopped")["scopes"] if scope["name"] == "Locals")
    ask("variables", variablesReference=locals_["variablesReference"])
    values = "__import__('sys')._rldbg_values.answers({'hangs': hangs, 'raises': raises})"
    shown = ask("evaluate", expression=values, frameId="stopped", context="watch")["result"]
    assert "TookTooLong" in shown and "RuntimeError" in shown
    # Without a limit of its own: only the text of the value hangs, and that is not waited for as long as an expression.
    value = "__import__('sys')._rldbg_values.answer(hangs)"
    asked = {"expression": value, "frameId": "stopped", "context": "watch"}
    shown = job.client.request("dap", who="train", command="evaluate", arguments=asked, limit_s=10_000, timeout_s=60.0)
    assert "its repr raised TookTooLong" in shown["result"]
    assert len(broadcast(job.client, "train", "p text").answers[0].value) > 5_000
    # It stands where it stood, and goes on when it is told to.
    assert _state(job)["state"] == "stopped" and _state(job)["debugged"]
    job.client.request("continue", who="all")
    assert "ENDED" in output(process)


@pytest.mark.parametrize("rounds", [pytest.param(5), pytest.param(50, marks=pytest.mark.soak)])
def test_rounds_of_attaching_and_leaving_leave_no_trace(job, rounds):
    (process,) = _start(job, 1)
    broker = psutil.Process(job.broker_pid())
    threads, connections = psutil.Process(process.pid).num_threads(), len(broker.net_connections())
    for number in range(rounds):
        with BrokerClient(job.run.path) as client:
            client.request("attach", who="0", stop=True)
            assert broadcast(client, "0", "p 1 + 1").answers[0].value == 2
            if number % 3:
                client.request("resume", who="0", how="next", wait_s=10)
            if number % 2:
                client.request("continue", who="0")
        # A client that left without continuing leaves it stopped, at the end of the step when that took longer.
        if not number % 2:
            until(lambda: _state_of(job, 0)["state"] == "stopped", "the stop to be there")
            job.client.request("continue", who="0")
        until(lambda: not _state_of(job, 0)["debugged"], "the session to be closed")
    until(lambda: psutil.Process(process.pid).num_threads() <= threads, "no thread left behind")
    until(lambda: len(broker.net_connections()) == connections, "no connection left behind")
    job.write("stop", "")
    assert "ENDED" in output(process)


def _bring_into(job, state, rank):
    """Brings a rank into a state in which somebody is about to die."""
    if state == "stopped":
        job.write(f"break_{rank}", "")
        until(lambda: _state_of(job, rank).get("state") == "stopped", "the stop")
    elif state == "opening":
        threading.Thread(target=_quietly, args=(job, "pause", rank), daemon=True).start()
    elif state == "stepping":
        job.client.request("attach", who=str(rank), stop=True)
        threading.Thread(target=_quietly, args=(job, "resume", rank), daemon=True).start()
    elif state == "breaking":
        threading.Thread(target=_quietly, args=(job, "break_set", rank), daemon=True).start()


def _quietly(job, op, rank):
    options = {"resume": {"how": "next", "wait_s": 5}, "break_set": {"file": str(job.folder / "loop.py"), "line": 4}}
    try:
        with BrokerClient(job.run.path) as client:
            client.request(op, **{"ranks" if op == "break_set" else "who": str(rank)}, **options.get(op, {}))
    except RldbgError:
        return


STATES = (
    "opening",
    "stopped",
    *(pytest.param(state, marks=pytest.mark.soak) for state in ("running", "stepping", "breaking")),
)


@pytest.mark.parametrize("state", STATES)
def test_a_rank_killed_in_any_state_harms_nobody(job, state):
    victim, survivor = _start(job, 2)
    _bring_into(job, state, 0)
    victim.kill()
    victim.wait()
    until(lambda: _state_of(job, 0).get("state") == "exited", "the broker to notice")
    job.client.request("break_clear")
    job.client.request("attach", who="1", stop=True)
    assert broadcast(job.client, "1", "p 1 + 1").answers[0].value == 2
    job.client.request("continue", who="1")
    job.write("stop", "")
    assert "ENDED" in output(survivor)


@pytest.mark.parametrize("state", STATES)
def test_a_broker_killed_in_any_state_never_stops_training(job, state):
    """Where none follows: whoever stands waits for that as long as it is told to, and then continues."""
    job.environment["RLDBG_BROKER_WAIT_S"] = "0.5"
    ranks = _start(job, 2)
    _bring_into(job, state, 0)
    job.kill_broker()
    job.write("stop", "")
    for process in ranks:
        assert "ENDED" in output(process)
        assert process.returncode == 0


@pytest.mark.parametrize("seed", [pytest.param(1), *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 60))])
def test_clients_killed_at_random_moments_leave_ranks_in_order(job, seed):
    rng = random.Random(seed)
    ranks = _start(job, 2)
    for _ in range(3):
        commands = rng.choices(["p total", "n", "s", "w", "locals", "b 5", "cl"], k=6)
        client = subprocess.Popen(
            [sys.executable, "-m", "rldbg", "attach", "0:2", "--run", str(job.run.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        job.processes.append(client)
        client.stdin.write("\n".join(commands) + "\n")
        client.stdin.flush()
        until(lambda: all(_state_of(job, rank)["attached_by"] for rank in range(2)), "the client to be attached")
        deadline = time.monotonic() + rng.uniform(0, 0.5)
        until(lambda at=deadline: time.monotonic() >= at, "a random moment")
        client.send_signal(signal.SIGKILL)
        client.wait()
        until(lambda: not any(_state_of(job, rank)["attached_by"] for rank in range(2)), "the broker to notice")
        job.client.request("break_clear")
        for rank in range(2):
            if _state_of(job, rank)["state"] == "stopped":
                assert broadcast(job.client, str(rank), "p 1 + 1").ok
                job.client.request("continue", who=str(rank))
    job.write("stop", "")

    def all_ended():
        # A step that a killed client had asked for may have ended in a stop since.
        for process in job.stopped():
            job.client.request("continue", who=f"@{process['pid']}")
        return all(process.poll() is not None for process in ranks)

    until(all_ended, "the ranks' end")
    for process in ranks:
        assert "ENDED" in output(process)


@pytest.mark.parametrize("count", [pytest.param(8), pytest.param(32, marks=pytest.mark.soak)])
def test_many_stopped_ranks_answer_together(job, count):
    ranks = _start(job, count)
    for rank in range(count):
        job.write(f"break_{rank}", "")
    job.wait_stopped(count)
    result = broadcast(job.client, "all", "p len('rank') - 4")
    assert [(group.value, len(group.who)) for group in result.groups] == [(0, count)]
    stepped = broadcast(job.client, "all", "n")
    assert stepped.ok and len(stepped.answers) == count
    job.client.request("continue", who="all")
    job.write("stop", "")
    for process in ranks:
        assert "ENDED" in output(process)


def test_the_broker_ends_with_its_owner_and_the_last_agent(tmp_path):
    script = tmp_path / "owner.py"
    script.write_text(
        "import os, sys\nfrom pathlib import Path\nfrom rldbg.core import Run\nfrom rldbg.live import start_broker\n"
        "start_broker(Run.create(name='x', path=Path(sys.argv[1])), owner_pid=os.getpid())\nprint('up', flush=True)\n"
    )
    command = [sys.executable, str(script), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "up\n"
    until(lambda: not (tmp_path / "run" / "broker.json").exists(), "the broker to end")


def test_a_session_that_is_open_does_not_keep_a_process_alive(job):
    (process,) = _start(job, 1)
    job.client.request("break_set", file=str(job.folder / "loop.py"), line=4, **{"if": "False"})
    assert _state_of(job, 0)["debugged"]
    job.write("stop", "")
    assert "ENDED" in output(process, 30)
    assert process.returncode == 0


def test_an_agent_finds_the_next_broker_and_keeps_its_place(job):
    (process,) = _start(job, 1)
    job.kill_broker()
    start_broker(job.run, owner_pid=os.getpid())
    with BrokerClient(job.run.path) as client:
        until(lambda: [p for p in client.request("ps")["processes"] if p["rank"] == 0], "the agent")
        client.request("attach", who="0", stop=True)
        assert broadcast(client, "0", "p 1 + 1").answers[0].value == 2
        client.request("continue", who="0")
    job.write("stop", "")
    assert "ENDED" in output(process)
