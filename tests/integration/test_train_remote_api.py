"""The remote_api mode against the training service in a process of its own, on a real Ray cluster."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import rldbg
from rldbg.core import Run, UnreachableError, UsageError
from rldbg.trainer import Reporting, parse_recipe, train
from rldbg.trainer.cluster import Cluster
from rldbg.trainer.settings import ClusterSettings

pytestmark = pytest.mark.timeout(900)
REMOTE_KINDS = ("prepared_trajectories", "datums", "training_metrics")


class Service:
    """A training service in a process of its own."""

    def __init__(self, folder):
        announcement = folder / "announcement.json"
        options = ["--model", "tiny", "--folder", str(folder), "--announce", str(announcement), "--deterministic"]
        self.process = subprocess.Popen([sys.executable, "-m", "rldbg.training_service", *options])
        deadline = time.monotonic() + 300
        while not announcement.is_file():
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        self.url = f"http://{json.loads(announcement.read_text())['address']}"

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def service(tmp_path):
    (tmp_path / "service").mkdir()
    started = Service(tmp_path / "service")
    yield started
    if started.process.poll() is None:
        started.kill()


def recipe(service, **changes):
    data = {
        "name": "remote",
        "mode": "remote_api",
        "steps": 2,
        "data": {"operators": "+", "prompts_per_step": 4, "samples_per_prompt": 4},
        "warm_start": {"max_steps": 20, "until_success": 0.5, "batch_size": 16},
        "algorithm": {"entropy_coeff": 0.001},
        "policy": {"ranks": 2, "micro_batch_size": 4},
        "remote": {"url": service.url},
        "debug": {
            "enable_data_dump": True,
            "dump_format": "safetensors",
            "dump_options": {"trajectory": True, "loss": True},
            "remote_api_dump_options": dict.fromkeys(REMOTE_KINDS, True),
        },
    } | changes
    return parse_recipe(data, source="test")


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_both_modes_agree_on_the_loss_of_the_same_trajectories(service, tmp_path):
    with Cluster(ClusterSettings()) as cluster:
        remote = train(recipe(service), Run.create(name="remote", path=tmp_path / "remote"), cluster=cluster).run
        mock = {"type": "mock", "need_llm_inference": False, "trajectory_load_path": str(remote)}
        replayed = recipe(service, mode="self_hosted", rollout_worker=mock)
        hosted = train(replayed, Run.create(name="hosted", path=tmp_path / "hosted"), cluster=cluster).run
    assert not os.environ.get("PYTHONBREAKPOINT"), "breakpoint() would go to a cluster that is gone"
    assert losses(hosted) == pytest.approx(losses(remote), abs=1e-6)
    recording = rldbg.open(remote)
    assert recording.verify() == []
    assert set(recording.kinds()) == set(REMOTE_KINDS)
    for kind in ("prepared_trajectories", "datums"):
        assert recording.samples(0, kind) == rldbg.open(hosted).samples(0, "trajectory")
    datums = next(iter(recording.records("datums", 0)))
    for inputs, targets in zip(datums.rows("input_tokens"), datums.rows("target_tokens"), strict=True):
        assert inputs[1:].tolist() == targets[:-1].tolist()


def test_a_killed_service_ends_the_run_by_name_and_leaves_the_recording_whole(service, tmp_path):
    run = Run.create(name="remote", path=tmp_path / "remote")
    alone = recipe(service, steps=50, cluster={"in_process": True}, policy={"ranks": 1, "micro_batch_size": 4})
    with pytest.raises(UnreachableError, match=service.url):
        train(alone, run, reporting=Reporting(on_step=lambda step, _metrics: service.kill() if step == 1 else None))
    recording = rldbg.open(run.path)
    assert recording.steps("training_metrics") == (0, 1)
    assert recording.verify() == []


def test_a_run_goes_on_from_the_policy_that_the_service_saved(service, tmp_path):
    settings = {"cluster": {"in_process": True}, "policy": {"ranks": 1, "micro_batch_size": 4}}
    saving = recipe(service, steps=4, checkpoint={"every_n_steps": 2, "keep_last": 2}, **settings)
    whole = train(saving, Run.create(name="whole", path=tmp_path / "whole")).run
    half = whole / "checkpoints" / "step_000002"
    rest = train(saving, Run.create(name="rest", path=tmp_path / "rest"), resume=half).run
    assert losses(rest) == losses(whole)[2:]
    with pytest.raises(UsageError, match="remote_api"):
        train(
            recipe(service, mode="self_hosted", **settings),
            Run.create(name="other", path=tmp_path / "other"),
            resume=half,
        )
