"""Waits in Ray jobs, armed and not: one job in which everything waits for ever, looked at as a whole."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from live_job import LiveJob, close_pipes, rldbg, until
from ray_stage import plain_environment

SCENES = Path(__file__).with_name("ray_wait_scenes.py")
# One sentence must hold all words of a line.
SENTENCES = {
    "calls": ["Partner.answer (actor second)", "Partner.answer (actor first)", "should run answer", "(deadlock)"],
    # Whoever waits in the same place for the same reason is in one sentence, in the order in which they are seen.
    "queue": [
        "consumer",
        "ray_wait_scenes.py:",
        "(ray.util.queue)",
        "no thread or process is seen that would put an item in",
        "Router.route has returned (router)",
        "router has it in `self.queues` under 'policy', where others have items: 'critic' (1 item)",
    ],
    "dead_producer": ["abandoned", "(ray.util.queue)", "actor producer has died"],
    "unschedulable": [
        "waits_for_huge waits at",
        "actor Huge",
        "cannot be scheduled: it asks for 8 GPU",
        "0 of 0 GPU free",
    ],
    "placement_group": ["waits_for_group waits at", "placement group", "is pending: it asks for 500 CPU", "CPU free"],
    "nodes": [
        "waits_for_nodes waits at",
        "placement group apart is pending",
        "STRICT_SPREAD wants each bundle on a node of its own, and the cluster has 1 node",
    ],
    "constructor": ["waits_for_mortal waits at", "actor mortal should run ping", "(started again", "keeps ending"],
    "restarted": [
        "waits_for_loading waits at",
        "loading should run ping and is still in its constructor, which Ray has started again once",
        "(__init__) for event",
    ],
    "gathered": ["of controller", "the result of RewardModel.score (actor judge)", "of judge runs score"],
    "engine": [
        "trainer waits at",
        "generator runs generate",
        "queue `self.results`",
        "process engine (pid",
        "killed by",
    ],
    "future": ["rollout waits at", "RewardModel.score", "future `self.verdict`", "would complete it"],
    "arguments": [
        "learner waits at",
        "task Grader.sample makes them",
        "learner should run export (queued behind fit), which makes them",
        "(deadlock)",
    ],
    "held_over_await": ["of rollouts holds it", "of rollouts runs its event loop", "(deadlock)"],
    "said": [
        "queue `self.shards`",
        "thread gather-shards of refitter caught KeyError: 'lm_head' (ray_wait_scenes.py:",
        "s ago and went on",
    ],
    "locks": ["`self.cache`", "`self.weights`", "flusher", "(deadlock)"],
}


class Job:
    """The driver of all scenes, with a cluster of its own."""

    def __init__(self, folder, environment, *, dashboard):
        self.folder = folder
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        # Ray chooses the port: one that was free here may be taken by the time its dashboard starts.
        options = {"include_dashboard": dashboard, "num_cpus": 1, "log_to_driver": False, "_temp_dir": str(folder)}
        patient = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300"}
        self.process = subprocess.Popen(
            [sys.executable, str(SCENES)],
            env=environment | patient | {"SCENE_RAY": json.dumps(options)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        line = next((line for line in self.process.stdout if line.startswith("READY")), "")
        self.errors.seek(0)
        assert line, f"the job ended before it was ready: {self.errors.read()[-3000:]}"
        self.address = line.split()[1]

    def end(self):
        self.process.stdin.close()
        self.process.wait(120)
        close_pipes(self.process)
        self.errors.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _until_said(look):
    """Ray learns of its tasks with a delay, and its dashboard may still be starting."""
    seen = []

    def said():
        try:
            seen[:] = ["\n".join([cause["verdict"], *cause["evidence"]]) for cause in look()["waits"]]
        except AssertionError as error:
            seen[:] = [str(error)]
        return not _missing(seen)

    try:
        until(said, "all sentences", 180)
    except AssertionError as error:
        lines = "\n".join(seen)
        raise AssertionError(f"missing {_missing(seen)} in\n{lines}") from error


def _missing(waits):
    return [
        scene for scene, words in SENTENCES.items() if not any(all(word in wait for word in words) for wait in waits)
    ]


@pytest.fixture(scope="module")
def unarmed():
    job = Job(Path(f"/tmp/rldbg-waits-{os.getpid()}"), plain_environment(), dashboard=True)
    yield job
    job.end()


@pytest.mark.usefixtures("by_itself")
@pytest.mark.timeout(600)
def test_every_wait_of_a_plain_cluster_is_explained(unarmed):
    def look():
        done = rldbg("stacks", "--ray", unarmed.address, "--diagnose", "--json", check=False, timeout_s=240)
        assert done.returncode == 1, done.stderr
        return json.loads(done.stdout)

    _until_said(look)


def test_all_workers_of_a_plain_cluster_are_listed(unarmed):
    workers = json.loads(rldbg("ps", "--ray", unarmed.address, "--json").stdout)["workers"]
    by_name = {worker["who"]: worker for worker in workers}
    assert by_name["first"]["state"] == "running" and by_name["first"]["task"] == "Partner.call"
    assert by_name["first"]["pid"] and by_name["first"]["host"]
    assert by_name["huge"]["state"] == "pending creation" and by_name["huge"]["asks_for"] == "8 GPU"
    assert by_name["driver"]["pid"] == unarmed.process.pid
    text = rldbg("ps", "--ray", unarmed.address).stdout
    assert "pending creation" in text and "asks for 8 GPU" in text


@pytest.mark.timeout(600)
def test_every_wait_of_an_armed_job_is_explained(tmp_path):
    with LiveJob(tmp_path) as job:
        waiting = Job(Path(f"/tmp/rldbg-armed-waits-{os.getpid()}"), job.environment, dashboard=False)

        def look():
            done = job.rldbg("stacks", "--diagnose", "--json", check=False, timeout_s=300)
            return json.loads(done.stdout)

        try:
            _until_said(look)
        finally:
            waiting.end()
