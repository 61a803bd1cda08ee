"""A pause means the main thread, also while it waits in C: in a sleep, a lock, `ray.get`, or a collective."""

import os
import signal
import subprocess
import sys
import time

import pytest
from live_job import PATIENCE_S, LiveJob, until
from other_python import python_with
from test_live_terminal import Terminal

from rldbg.core import UnreachableError
from rldbg.live import BrokerClient

# The main thread waits as a driver does in `ray.get`; another thread is busy, as Ray's log printer is.
WAITS = """
import sys, threading, time
def print_logs():
    while True:
        time.sleep(0.01)
def wait_for_result(limit_s):
    mine = "the driver"
    threading.Event().wait(limit_s)
    return mine
threading.Thread(target=print_logs, name="ray_print_logs", daemon=True).start()
wait_for_result(600)
"""
# A wait that signals do not end, as in a collective: it joins a thread of C that reads one character from `gate`.
IN_C = """
import ctypes, sys, threading, time
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
read = ctypes.cast(libc.fgetc, ctypes.c_void_p)
def all_reduce():
    loss = 0.25
    reader = ctypes.c_ulong()
    libc.pthread_create(ctypes.byref(reader), None, read, ctypes.c_void_p(libc.fopen(b"gate", b"r")))
    libc.pthread_join(reader, None)
    after = loss
    time.sleep(600)
def busy():
    while True:
        time.sleep(0.01)
if "busy" in sys.argv:
    threading.Thread(target=busy, name="loader", daemon=True).start()
all_reduce()
"""


@pytest.fixture
def job(tmp_path):
    with LiveJob(tmp_path) as job:
        yield job


@pytest.fixture
def gate(job):
    """A call ends the wait in C."""
    os.mkfifo(job.folder / "gate")
    # For reading too: whoever opens it does not wait for the other end.
    descriptor = os.open(job.folder / "gate", os.O_RDWR)
    yield lambda: os.write(descriptor, b"x")
    os.close(descriptor)


def _wait_in_c(job, *arguments):
    process = _start(job, IN_C, *arguments)
    until(lambda: "pthread_join" in _where(job), "the wait")
    return process


def _start(job, text, *arguments, python=sys.executable):
    job.start(job.write("train.py", text), *arguments, python=python)
    until(lambda: any(p["who"] == "train" for p in job.ps()), "the agent")
    return until(lambda: [p for p in job.ps() if p["who"] == "train"], "the process")[0]


@pytest.mark.parametrize("version", [None, "3.12", pytest.param("3.13", marks=pytest.mark.soak)])
def test_attach_stops_in_the_main_thread_that_waits(job, version):
    _start(job, WAITS, python=python_with(version, "debugpy") if version else sys.executable)
    for _ in range(3):
        until(lambda: "wait_for_result" in str(job.client.request("stacks")), "the wait")
        done = job.rldbg(
            "attach", "train", "-c", "w", "-c", "p __import__('threading').current_thread().name", "-c", "c"
        )
        assert "wait_for_result()" in done.stdout and "'MainThread'" in done.stdout, done.stdout


@pytest.mark.usefixtures("gate")
def test_attach_to_a_rank_in_c_shows_its_main_thread_and_resumes(job):
    _wait_in_c(job, "busy")
    done = job.rldbg("attach", "train", "-c", "w", "-c", "p loss", check=False)
    assert "all_reduce()" in done.stdout and "in C code" in done.stdout, done.stdout
    (stopped,) = job.stopped()
    assert stopped["function"] == "all_reduce" and any("in C code" in note for note in stopped["notes"])
    job.rldbg("continue", "all")
    until(lambda: not job.ps()[0]["debugged"], "the session to be closed")


def test_a_rank_in_c_stops_as_soon_as_it_is_back_though_the_client_left(job, gate):
    process = _wait_in_c(job)
    # WHEN attach gives up THEN it says what will happen, and that happens
    _attach_in_vain(job)
    assert not job.stopped()
    gate()
    (stopped,) = job.wait_stopped()
    assert (stopped["pid"], stopped["function"]) == (process["pid"], "all_reduce")
    job.rldbg("continue", "all")


def test_attach_says_at_once_that_a_rank_in_c_stops_later_and_opens_its_prompt_then(job, gate):
    _wait_in_c(job)
    command = [sys.executable, "-m", "rldbg", "attach", "train", "-c", "p loss", "--wait", str(PATIENCE_S)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--run", str(job.run.path)], **pipes) as attach:
        assert "train is not in Python code now; it stops at its next line of Python" in attach.stderr.readline()
        gate()
        text, _ = attach.communicate(timeout=PATIENCE_S)
    assert attach.returncode == 0 and "0.25" in text, text


def test_continue_cancels_a_pause_that_has_not_come_true(job, gate):
    _wait_in_c(job)
    _attach_in_vain(job)
    job.client.request("continue", who="train")
    gate()
    until(lambda: "time.sleep(600)" in _where(job), "the program to go on")
    assert not job.stopped() and not job.ps()[0]["debugged"]


def _attach_in_vain(job):
    """By a client that leaves."""
    with BrokerClient(job.run.path) as client, pytest.raises(UnreachableError, match="stops as soon as it does"):
        client.request("attach", who="train", stop=True, wait_s=0.5)


def _where(job):
    """The line at which the main thread is."""
    threads = job.client.request("stacks")["stacks"][0].get("threads") or [{"frames": []}]
    frames = threads[0]["frames"]
    line = next((f["line"] for f in frames if f["function"] == "all_reduce"), 1)
    return (job.folder / "train.py").read_text().splitlines()[line - 1]


def test_ctrl_c_after_continue_stops_again_at_once(job):
    _start(job, WAITS)
    command = [sys.executable, "-m", "rldbg", "attach", "train", "--run", str(job.run.path)]
    terminal = Terminal(command, os.environ | {"RLDBG_HOME": str(job.folder / "home")}, job.folder)
    try:
        terminal.expect("(train)")
        terminal.type("c")
        until(lambda: not job.stopped(), "the program to go on")
        # WHEN Ctrl-C is typed while `c` waits for the next stop THEN the prompt is back at the running program
        begin = time.monotonic()
        os.killpg(os.getpgid(terminal.process.pid), signal.SIGINT)
        terminal.expect("-> ")
        assert time.monotonic() - begin < PATIENCE_S / 2 and job.wait_stopped()
        terminal.type("c")
        until(lambda: not job.stopped(), "the program to go on")
    finally:
        terminal.close()
