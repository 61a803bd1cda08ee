"""Ranks of torch.distributed: signals end their launcher, and a traceback is shown while the rank waits."""

import signal
import subprocess
import sys

import pytest
from live_job import LiveJob, until

from rldbg.agent import Arming

RANK_THAT_RUNS = """
import os, pathlib, time
pathlib.Path(f"up_{os.environ['RANK']}").touch()
while True:
    time.sleep(0.05)
"""
RANK_THAT_FAILS = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + __file__ + ".store", rank=0, world_size=1)
raise ValueError("the loss is not a number")
"""


@pytest.fixture
def job(tmp_path):
    with LiveJob(tmp_path, arming=Arming(post_mortem_wait_s=600.0)) as job:
        yield job


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_torchrun_although_crashes_are_held(job, number):
    script = job.write("train.py", RANK_THAT_RUNS)
    launcher = job.start("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, script)
    until(lambda: all((job.folder / f"up_{rank}").exists() for rank in range(2)), "the ranks")
    launcher.send_signal(number)
    # torchrun gives its ranks 30 s; one that is held as a crash would stay for 600.
    launcher.wait(60)
    assert not list((job.run.path / "crashes").glob("*.json"))


def test_a_traceback_is_in_the_log_while_the_rank_waits(job):
    log = job.folder / "rank.log"
    script = job.write("train.py", RANK_THAT_FAILS)
    with open(log, "w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            [sys.executable, str(script)], env=job.environment, stdin=subprocess.DEVNULL, stderr=stream, cwd=job.folder
        )
    job.processes.append(process)
    job.wait_stopped()
    # THEN the rank's own traceback, with torch's prefix, and the line that says it waits are there before anybody came
    text = until(lambda: "waiting up to" in log.read_text() and log.read_text(), "the line that says that it waits")
    assert "[rank0]: ValueError: the loss is not a number" in text
    assert process.poll() is None and len(list((job.run.path / "crashes").glob("*.json"))) == 1
    job.client.request("continue", who="all")
    assert process.wait(60) == 1
    assert log.read_text().count("ValueError: the loss is not a number") == 1
