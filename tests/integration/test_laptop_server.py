"""The server of `rldbg run --laptop` ends with the run, also when nothing of the run can say goodbye."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

RUN = """
import sys
from pathlib import Path
from rldbg.launch.laptop_server import laptop_server
with laptop_server(Path("tiny"), Path(sys.argv[1])) as address:
    print(address, flush=True)
    sys.stdin.read()
"""


def processes_of(folder):
    return [found for found in psutil.process_iter() if belongs(found, str(folder))]


def belongs(process, folder):
    try:
        return process.environ().get("RLDBG_HOME") == folder and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.mark.timeout(180)
def test_a_killed_run_leaves_no_server_behind(tmp_path):
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        address = run.stdout.readline().strip()
        assert address.startswith("127.0.0.1:")
        servers = processes_of(tmp_path)
        assert servers
        os.kill(run.pid, signal.SIGKILL)
    _, left = psutil.wait_procs(servers, timeout=60)
    assert not left


@pytest.mark.timeout(180)
def test_a_server_that_cannot_start_says_why(tmp_path):
    run = subprocess.run([sys.executable, "-c", RUN.replace('"tiny"', '"/nowhere"'), str(tmp_path)],
                         stdin=subprocess.DEVNULL, capture_output=True, text=True)  # fmt: skip
    assert run.returncode == 1
    assert "the server of --laptop failed: " in run.stderr
    assert "/nowhere" in run.stderr
