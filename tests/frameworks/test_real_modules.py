"""AReaL, OpenRLHF, SkyRL and miles: their own actors and losses on this machine's processors, recorded by hooks."""

import json
from pathlib import Path

import environments
import pytest
from real_runs import rldbg
from taught_model import qwen2

from rldbg.recording import open as open_recording

BATCH = {"trajectory", "prepared_trajectories", "old_log_probs"}
LOSS = {"forward_data", "is_loss_debug", "loss"}
UPDATE = {"gradient", "param", "update_metrics"}
CHECKS = {"advantages-follow-rewards", "first-ratio-is-one", "response-mask-follows", "rollout-matches-trainer"}
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return qwen2(tmp_path_factory.mktemp("model") / "qwen2")


@pytest.fixture(scope="module", params=["areal", "openrlhf", "skyrl", "miles"])
def run(request, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "run"
    python = getattr(environments, request.param)()
    job = Path(__file__).with_name(f"{request.param}_job.py")
    flags = ["--run", folder, "--record", "--full-length", "--no-doctor", "--wait", "0"]
    done = rldbg("run", *flags, "--", python, job, model, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "cannot record" not in done.stdout + done.stderr
    return folder


def test_every_kind_is_recorded_and_the_checks_hold(run):
    recording = open_recording(run)
    assert {entry.kind for entry in recording.entries()} - UPDATE == BATCH | LOSS
    assert {sample for record in recording.records(kind="loss") for sample in record.samples} == set(
        next(recording.records(kind="trajectory")).samples
    )
    found = json.loads(rldbg("check", run, "--json").stdout)
    assert not [each for each in found["findings"] if each["severity"] == "error"], found["findings"]
    assert set(found["passed"]) >= CHECKS


@pytest.mark.parametrize("run", ["areal", "openrlhf", "skyrl"], indirect=True)
def test_gradients_are_those_before_clipping(run):
    """Those of miles are Megatron's, which does not run here."""
    recording = open_recording(run)
    assert {entry.kind for entry in recording.entries()} >= UPDATE
    for update in recording.records(kind="update_metrics"):
        parts = [part for part in recording.records(kind="gradient") if part.key.mini_batch == update.key.mini_batch]
        norm = sum(float(part.fields["norm"]) ** 2 for part in parts) ** 0.5
        assert norm == pytest.approx(update.fields["metrics"]["grad_norm"], rel=1e-2), "bfloat16 in one of them"
