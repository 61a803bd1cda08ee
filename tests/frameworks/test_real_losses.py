"""`rerun --loss` on the frameworks' own losses, by their own signatures."""

import json
import os
import subprocess
from pathlib import Path

import environments
import pytest
from client_environments import ROOT, TRL, environment_with

from loss_batches import save_batch

pytestmark = pytest.mark.timeout(600)
CORE = "verl.trainer.ppo.core_algos:compute_policy_loss"
# By framework: its losses, and the reference that each equals at both points; "" if it is none of them.
LOSSES = {
    "verl": {f"{CORE}_vanilla": "ppo", CORE: "ppo", f"{CORE}_gspo": "", "verl.workers.utils.losses:ppo_loss": "ppo"},
    "openrlhf": {"openrlhf.models.loss:PolicyLoss": "ppo"},
    "areal": {
        "areal.trainer.ppo.actor:grpo_loss_fn": "ppo",
        "areal.utils.functional.functional:ppo_actor_loss_fn": "ppo",
    },
    "trl": {
        "trl.trainer.grpo_trainer:GRPOTrainer._compute_loss": "ppo",
        "trl.trainer.grpo_trainer:GRPOTrainer.compute_loss": "ppo",
    },
}


@pytest.mark.parametrize("framework", LOSSES)
def test_losses_of_the_framework_equal_what_they_are(tmp_path, framework):
    batch = tmp_path / "batch.pt"
    save_batch(batch)
    python = (
        environment_with("trl", TRL, beside_ours=True) if framework == "trl" else getattr(environments, framework)()
    )
    ran = subprocess.run(
        [python, Path(__file__).with_name("losses_job.py"), batch, *LOSSES[framework]],
        capture_output=True, text=True, timeout=500, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout.rpartition("found ")[2])
    for name, reference in LOSSES[framework].items():
        for point in ("recorded", "moved"):
            verdicts = {item: value for item, value in found[name][point].items() if item != "loss"}
            assert not reference or verdicts[reference] == "equal", (name, found[name])
