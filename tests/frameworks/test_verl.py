"""verl from its registry, its own trainer on this machine's processors (`--laptop`), recorded by hooks."""

import json

import pytest
from client_environments import environment_with
from real_runs import rldbg
from taught_model import teach
from verl_files import options, write_files

from rldbg.recording import open as open_recording

VERL = ("verl==0.9.1", "TransferQueue==0.1.11", "cachetools", "uvicorn", "fastapi")
KINDS = {
    "trajectory", "prepared_trajectories", "old_log_probs", "training_metrics", "forward_data", "is_loss_debug", "loss",
    "gradient", "param", "update_metrics",
}  # fmt: skip
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return teach(tmp_path_factory.mktemp("model") / "tiny", steps=60)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    python = environment_with("verl", VERL, torch=True, constrained=False)
    folder = tmp_path_factory.mktemp("verl")
    write_files(folder, model)
    flags = ["--run", folder / "run", "--laptop", "--model", model, "--record", "--full-length", "--no-doctor"]
    variables = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "RAY_raylet_start_wait_time_s": "200"}
    job = [python, "-m", "verl.trainer.main_ppo", *options(folder, model), f"hydra.run.dir={folder}/hydra"]
    done = rldbg("run", *flags, "--wait", "0", "--", *job, **variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "cannot record" not in done.stdout + done.stderr
    return folder / "run"


def test_every_kind_is_recorded_and_the_checks_hold(run):
    recording = open_recording(run)
    assert {entry.kind for entry in recording.entries()} == KINDS
    assert recording.steps("loss") == (1, 2)
    found = json.loads(rldbg("check", run, "--json").stdout)
    assert not [each for each in found["findings"] if each["severity"] == "error"], found["findings"]
    assert {"rollout-matches-trainer", "advantages-follow-rewards", "policy-versions-fresh"} <= set(found["passed"])


def test_gradients_are_those_before_clipping(run):
    recording = open_recording(run)
    norm = next(recording.records(kind="update_metrics")).fields["metrics"]["grad_norm"]
    parts = [record for record in recording.records(kind="gradient") if record.key.step == 1]
    assert sum(float(record.fields["norm"]) ** 2 for record in parts) ** 0.5 == pytest.approx(norm, rel=1e-4)


def test_samples_have_names_that_other_runs_have_too(run):
    recording = open_recording(run)
    driver = {sample for record in recording.records(kind="trajectory") for sample in record.samples}
    ranks = {sample for record in recording.records(kind="loss") for sample in record.samples}
    assert driver == ranks
    assert {sample.run_id for sample in driver} == {0, 1, 2, 3}
    assert len({sample.group_id for sample in driver}) == 8
