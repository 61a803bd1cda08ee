"""Ranks that nobody armed: under torchrun on this host, in a SLURM job, on another host."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from free_networks import free_port
from live_job import LiveJob, close_pipes, rldbg, until
from ray_stage import plain_environment
from scene_programs import ScenePrograms
from slurm_cluster import NEEDS_SLURM, running_cluster, wait_for

from rldbg.agent import Arming

SCENES = Path(__file__).with_name("wait_scenes.py")


def _torchrun(scene, folder, environment):
    """Two ranks under a real torchrun, once both have joined their process group."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCENES), scene]
    process = subprocess.Popen(
        [*command, str(folder)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    until(lambda: len(list(folder.glob(f"{scene}?"))) == 2 or process.poll() is not None, f"ranks of {scene}", 120)
    assert process.poll() is None, process.stdout.read()
    return process


def _verdicts(*arguments, **options):
    done = rldbg("stacks", *arguments, "--diagnose", "--json", check=False, timeout_s=120, **options)
    assert done.returncode == 1, done.stderr
    return ["\n".join([cause["verdict"], *cause["evidence"]]) for cause in json.loads(done.stdout)["waits"]]


def _until_said(words, look):
    until(lambda: any(all(word in verdict for word in words) for verdict in look()), f"{words} in {look()}", 60)


SLOW = ["rank 0 waits at", "(slow_rank) for all_reduce", "rank 1 never entered it, but sleeps", "(load_checkpoint)"]
BEGUN = ["rank 0 waits at", "for irecv from rank 1; rank 1 does not send it", "for broadcast from rank 0", "(deadlock)"]
SKIPPED = [
    "rank 0 never entered it (it skipped it: `tokens > 0` (wait_scenes.py:",
    "; now tokens = 0) did not hold",
]
ROOTS = ["for broadcast; the ranks in it disagree on its root: rank 0 from rank 0, rank 1 from rank 1"]
RAISED = ["rank 1 never entered it, but raised ValueError: the reward is not a number at wait_scenes.py:", "heartbeat"]


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        ("slow_rank", SLOW),
        ("raised_rank", RAISED),
        ("begun_receive", BEGUN),
        ("skipped_collective", SKIPPED),
        ("roots_apart", ROOTS),
    ],
)
def test_ranks_of_torchrun_are_found_and_explained(tmp_path, scene, words):
    process = _torchrun(scene, tmp_path, plain_environment())
    try:
        _until_said(words, lambda: _verdicts("--pid", str(process.pid)))
        if scene == "slow_rank":
            stacks = json.loads(rldbg("stacks", "--torchrun", "--json", check=False).stdout)["stacks"]
            assert {"wait_scenes/0", "wait_scenes/1"} <= {stack["who"] for stack in stacks}
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        close_pipes(process)


def test_ranks_at_different_ports_are_told_with_their_addresses(tmp_path):
    programs = ScenePrograms(SCENES, tmp_path, plain_environment(), ["ports_apart"])
    try:
        until(lambda: len(list(tmp_path.glob("ports_apart?"))) == 2, "both ranks", 120)
        words = [
            "they look for each other at different addresses: ",
            "(rank 1) at 127.0.0.1:",
            ", where nobody listens",
        ]
        _until_said(words, lambda: _verdicts("--pid", str(programs.processes["ports_apart"].pid)))
    finally:
        programs.end()


@pytest.mark.parametrize("held", [False, True])
def test_a_rank_of_an_armed_job_that_raised_is_named_with_its_exception(tmp_path, held):
    with LiveJob(tmp_path, arming=Arming(post_mortem_wait_s=600.0 if held else 0.0)) as job:
        network = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        job.ranks(SCENES, 2, "raised_rank", tmp_path, **network)
        until(lambda: any(p["message"] for p in job.ps(all=True)), "the exception", 120)
        exception = "rank 1 raised ValueError: the reward is not a number at wait_scenes.py:"
        words = ["rank 1 never entered all_reduce", exception, *(["held for inspection"] if held else [])]

        def look():
            done = job.rldbg("stacks", "--diagnose", "--json", check=False)
            return ["\n".join([cause["verdict"], *cause["evidence"]]) for cause in json.loads(done.stdout)["waits"]]

        _until_said(words, look)


@NEEDS_SLURM
def test_a_slurm_job_and_another_host_are_looked_at(tmp_path):
    with running_cluster() as cluster:
        script = f"#!/bin/bash\nsrun -N2 -n2 {sys.executable} {SCENES} lock_deadlock {tmp_path}\n"
        job = cluster.submit(script, "-N2")
        wait_for((tmp_path / "lock_deadlock").exists, "the job")
        words = ["lock `self.tensors`", "pusher", "(deadlock)"]
        _until_said(words, lambda: _verdicts("--slurm", job, env=cluster.environment))
        pid = (tmp_path / "lock_deadlock").read_text()
        _until_said(words, lambda: _verdicts("--host", "node-10", "--ssh", cluster.ssh, "--pid", pid))
        refused = rldbg("stacks", "--host", "node-9", "--ssh", cluster.ssh, check=False)
        assert refused.returncode == 5 and "ssh node-9 failed" in refused.stderr
        cluster.command("scancel", job)
        gone = rldbg("stacks", "--slurm", "99999", check=False, env=cluster.environment)
        assert gone.returncode == 5 and "99999" in gone.stderr
