"""`rldbg.record_loop` in a module of Lightning, whose optimizers run forward and backward passes in a closure."""

import os
import subprocess
from pathlib import Path

import pytest
from client_environments import environment_with

from rldbg.recording import open as open_recording

LIGHTNING = ("lightning==2.6.6", "lightning-utilities==0.15.3", "torchmetrics==1.9.0")
JOB = Path(__file__).with_name("lightning_job.py")
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("clip", [0.1, 0.0], ids=["clipped", "unclipped"])
def test_updates_have_losses_raw_gradients_and_parameters(tmp_path, clip):
    python = environment_with("lightning", LIGHTNING, beside_ours=True)
    source = str(Path(__file__).parents[2] / "src")
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    command = [str(python), str(JOB), str(tmp_path / "dump"), str(clip)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    recording = open_recording(tmp_path / "dump")
    assert recording.steps("loss") == recording.steps("gradient") == recording.steps("param") == (0, 1)
    assert len([entry for entry in recording.entries() if entry.kind == "loss"]) == 4, "two micro-batches per update"
    gradients = [record for record in recording.records(kind="gradient") if record.key.step == 0]
    norm = sum(float(record.fields["norm"]) ** 2 for record in gradients) ** 0.5
    assert norm > 1.0, "before clipping"
    metrics = next(recording.records(kind="training_metrics")).fields["metrics"]
    assert metrics.get("grad_norm", norm) == pytest.approx(norm, rel=1e-5)
