"""The tinker cookbook's loops, as published, against our training service: supervised, minimal RL, and `rl/train`.

Nothing of the cookbook is replaced. What it reads from the hub is in a Hugging Face cache made here
(cookbook_material.py): a tiny model under the recipes' default name, and a few rows of their data sets.
"""

import json
import math
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import cookbook_material
import pytest
from client_environments import environment_with
from serve_shell import RLDBG, serving

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
COOKBOOK = ("tinker-cookbook[math-rl]==0.5.8", "tinker==0.36.0")
SMALL = ("batch_size=4", "group_size=8", "max_tokens=20", "learning_rate=1e-3")


@pytest.fixture(scope="module")
def cookbook():
    return environment_with("tinker-cookbook", COOKBOOK, torch=True, constrained=False)


@pytest.fixture(scope="module")
def hub(cookbook, tmp_path_factory):
    home = tmp_path_factory.mktemp("hub")
    cookbook_material.model(home)
    script = str(Path(cookbook_material.__file__))
    subprocess.run([str(cookbook), script, str(home)], check=True, capture_output=True, timeout=300)
    return {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "TINKER_API_KEY": "tml-local"}


@contextmanager
def service(hub, home, recording):
    """The environment of a client of a service that records its first model."""
    dump = {"WEAVER_DEBUG_DUMP_ENABLED": "1", "WEAVER_DEBUG_DUMP_DIR": str(recording),
            "WEAVER_DEBUG_DUMP_OPTIONS": "datums,batch_inputs,forward_data,loss,training_metrics"}  # fmt: skip
    variables = hub | {"RLDBG_HOME": str(home)}
    words = ("--backend", "train", "--model", cookbook_material.MODEL)
    with serving(home, *words, variables=hub | dump) as started:
        yield os.environ | variables | {"TINKER_BASE_URL": f"http://{started['addresses'][0]}"}


def run(cookbook, environment, folder, *command):
    ran = subprocess.run([str(cookbook), *command], capture_output=True, text=True, env=environment, cwd=folder,
                         timeout=900)  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return ran.stdout + ran.stderr


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check(recording):
    ran = subprocess.run([RLDBG, "check", recording, "--json"], capture_output=True, text=True, timeout=300)
    assert ran.returncode in (0, 1), ran.stderr
    return json.loads(ran.stdout)


def test_sl_loop_learns_and_continues_from_its_checkpoint(cookbook, hub, tmp_path):
    command = ("-m", "tinker_cookbook.recipes.sl_loop", "log_path=log", "batch_size=8", "save_every=2")
    with service(hub, tmp_path / "home", tmp_path / "recording") as environment:
        run(cookbook, environment, tmp_path, *command, "learning_rate=0.01", "max_steps=3")
        first = metrics(tmp_path / "log")
        saved = (tmp_path / "log" / "checkpoints.jsonl").read_text().splitlines()
        # As after a crash: the checkpoint before the last one is the newest.
        (tmp_path / "log" / "checkpoints.jsonl").write_text(saved[0] + "\n")
        log = run(cookbook, environment, tmp_path, *command, "learning_rate=0.01")
    losses = [row["train_mean_nll"] for row in first]
    assert losses[-1] < losses[0] * 0.8 and [row["step"] for row in first] == [0, 1, 2]
    assert "Resuming from batch 2" in log
    again = metrics(tmp_path / "log")[3:]
    assert again[0]["train_mean_nll"] == pytest.approx(losses[2], rel=1e-5), "the same batch on the same weights"
    assert [row["step"] for row in again] == [2, 3]


def test_rl_loop_trains_on_what_it_samples_and_its_recording_checks(cookbook, hub, tmp_path):
    command = ("-m", "tinker_cookbook.recipes.rl_loop", "log_path=log", "save_every=2", "max_steps=3", *SMALL)
    with service(hub, tmp_path / "home", tmp_path / "recording") as environment:
        run(cookbook, environment, tmp_path, *command)
    rows = metrics(tmp_path / "log")
    assert [row["step"] for row in rows] == [0, 1, 2] and all(row["grad_norm"] > 0 for row in rows)
    assert 0 < sum(row["reward/total"] for row in rows) < 3, "some answers are right"
    report = check(tmp_path / "recording")
    assert not [item for item in report["findings"] if item["severity"] == "error"], report["findings"]


def test_rl_train_in_its_three_modes(cookbook, hub, tmp_path):
    job = str(Path(__file__).with_name("cookbook_job.py"))
    with service(hub, tmp_path / "home", tmp_path / "recording") as environment:
        log = run(cookbook, environment, tmp_path, job, "log", cookbook_material.MODEL)
    assert log.count("Training completed successfully") == 3
    assert "custom loss agrees" in log
    for mode, substeps in (("synchronous", 2), ("off_policy", 1), ("streaming", 1)):
        rows = metrics(tmp_path / "log" / mode)
        assert [row["optimizer_step"] for row in rows] == [substeps * number for number in (1, 2, 3)], mode
        assert all(row["grad_norm"] > 0 and math.isfinite(row["env/all/reward/total"]) for row in rows), mode
    # Sampler and trainer agree on the same weights, and the policy leaves its reference.
    assert abs(metrics(tmp_path / "log" / "off_policy")[0]["optim/kl_sample_train_v1"]) < 1e-5
    rows = metrics(tmp_path / "log" / "synchronous")
    assert abs(rows[0]["kl_policy_base"]) < 1e-5 < rows[-1]["kl_policy_base"]
    assert all("kl_pre_post_v1" in row for row in rows)
