"""How `rldbg run` follows its command: what ended it is known, whoever takes the signal first."""

import os
import signal
import sys
import threading
import time

import psutil
import pytest

from rldbg.launch.armed_run import ended_by
from rldbg.launch.child import run_child


def test_a_signal_to_the_whole_group_is_known_even_if_the_command_ends_first():
    # GIVEN a command that a signal to the whole group ends before we take ours
    started, asked = [], []

    def signal_the_group():
        os.kill(started[0], signal.SIGTERM)
        os.waitid(os.P_PID, started[0], os.WEXITED | os.WNOWAIT)
        signal.raise_signal(signal.SIGTERM)

    # WHEN it has ended
    code = run_child(
        ["sleep", "600"],
        environment=dict(os.environ),
        started=started.append,
        tick=signal_the_group,
        asked_to_end=asked.append,
        every_s=0.01,
    )

    # THEN its end is the signal's, and not a failure without a cause
    assert (code, asked) == (128 + signal.SIGTERM, ["SIGTERM"])


# Ignores what asks it to end; its rank is in a session of its own, as those of torchrun are, and ignores it, too.
STUBBORN = """
import os, signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
if len(sys.argv) > 2:
    environment = os.environ | {"RANK": "0"} if sys.argv[3] == "rank" else None
    child = [sys.executable, __file__, sys.argv[2]]
    subprocess.Popen(child, start_new_session=True, env=environment)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
with open(sys.argv[1] + "~", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + "~", sys.argv[1])
if "leaves" in sys.argv:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(3))
time.sleep(600)
"""


def _pid(path):
    return int(path.read_text()) if path.exists() else 0


def _run(folder, signals, *, kind="rank", leaves=False):
    """Sends one signal after the other, each long after the one before; how it ended and what was said."""
    program, ready, rank = folder / "stubborn.py", folder / "ready", folder / "rank"
    program.write_text(STUBBORN)
    asked, said, left = [], [], list(signals)
    last = [0.0]

    def tick():
        if left and _pid(ready) and time.monotonic() > last[0] + 0.3:
            last[0] = time.monotonic()
            signal.raise_signal(left.pop(0))

    code = run_child(
        [sys.executable, str(program), str(ready), str(rank), kind, *(["leaves"] if leaves else [])],
        environment=dict(os.environ),
        tick=tick,
        asked_to_end=asked.append,
        say=said.append,
        every_s=0.02,
    )
    return code, asked, said, _pid(rank)


def _is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def _wait_for_end(pid):
    deadline = time.monotonic() + 10
    while _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not _is_running(pid)


@pytest.mark.parametrize(
    "signals",
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGTERM),
        (signal.SIGHUP, signal.SIGINT),
    ],
)
def test_a_second_signal_ends_everything_at_once(tmp_path, signals):
    begin = time.monotonic()
    code, asked, _, rank = _run(tmp_path, signals)
    assert code == 128 + signal.SIGKILL and time.monotonic() - begin < 20
    assert asked == [*(each.name for each in signals), "SIGKILL"]
    assert _wait_for_end(rank), "its rank, in a session of its own, survived"
    assert ended_by(code, asked) == f"SIGKILL, after {signals[0].name} and {signals[1].name}"


@pytest.fixture(autouse=True)
def hang_ups():
    """SIGHUP as a terminal leaves it, also where the tests themselves run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_under_nohup_nobody_hears_a_hang_up():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    asked, sent = [], []

    def tick():
        if not sent:
            sent.append(os.kill(os.getpid(), signal.SIGHUP))

    code = run_child(
        ["sh", "-c", "sleep 0.3; exit 3"],
        environment=dict(os.environ),
        tick=tick,
        asked_to_end=asked.append,
        every_s=0.02,
    )
    assert (code, asked, len(sent)) == (3, [], 1)


def test_two_signals_of_one_request_are_one(tmp_path):
    """A shell and the terminal both tell of a hang-up: a command that ends in order is not killed."""
    asked, ready = [], tmp_path / "ready"

    def tick():
        if ready.exists() and not asked:
            signal.raise_signal(signal.SIGHUP)

    def asked_to_end(name):
        # The second one comes as soon as the first one was taken.
        asked.append(name)
        if len(asked) == 1:
            signal.raise_signal(signal.SIGHUP)

    words = "trap 'sleep 0.3; exit 7' HUP; touch \"$0\"; while :; do sleep 0.02; done"
    code = run_child(
        ["sh", "-c", words, str(ready)],
        environment=dict(os.environ),
        tick=tick,
        asked_to_end=asked_to_end,
        every_s=0.02,
    )
    assert (code, asked) == (7, ["SIGHUP"])


def test_a_rank_that_survives_its_launcher_is_ended(tmp_path):
    # GIVEN a launcher that leaves at the first signal, and its rank, which ignores it; WHEN there is a second one
    timer = threading.Timer(3.0, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    timer.start()
    code, asked, said, rank = _run(tmp_path, (signal.SIGINT,), leaves=True)
    timer.cancel()
    # THEN the rank is killed
    assert code == 3 and asked == ["SIGINT", "SIGINT", "SIGKILL"]
    assert _wait_for_end(rank) and str(rank) in said[0]


def test_what_was_put_into_a_session_of_its_own_otherwise_is_named(tmp_path):
    code, asked, said, daemon = _run(tmp_path, (signal.SIGTERM,), kind="daemon", leaves=True)
    assert code == 3 and asked == ["SIGTERM"] and _is_running(daemon)
    assert any(f"kill {daemon}" in line for line in said)
    os.kill(daemon, signal.SIGKILL)
