"""Random commands at the prompts of stopped ranks, with clients killed at random: no rank is lost or freed."""

import subprocess
import sys

import pytest
from live_job import LiveJob
from prompt_fuzz import PROGRAM


def _fuzz(tmp_path, count, seed, timeout_s):
    with LiveJob(tmp_path) as job:
        job.ranks(job.write("train.py", PROGRAM), 2)
        job.wait_stopped(2)
        command = [sys.executable, "-m", "prompt_fuzz", str(job.run.path), str(count), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=_HERE, check=False)
        assert done.returncode == 0 and f"{count} sequences" in done.stdout, done.stdout + done.stderr
        # THEN every rank still stops, answers and goes on
        job.client.request("continue", who="all")
        assert all(process.poll() is None for process in job.processes)


_HERE = __file__.rpartition("/")[0]


def test_random_commands_neither_lose_nor_free_a_rank(tmp_path):
    _fuzz(tmp_path, 45, seed=1, timeout_s=120)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(5))
def test_five_thousand_random_sequences(tmp_path, seed):
    _fuzz(tmp_path, 1000, seed=100 + seed, timeout_s=7000)
