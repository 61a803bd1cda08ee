"""A hook that a framework no longer has is named once per run, on stderr and in the run folder."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from profile_jobs import profile

from unit.frameworks.distributions import make_distribution

TRAINER = """
class PPOTrainer:
    def _update_actor(self, batch, metrics):
        return batch
"""
JOB = """\
import subprocess, sys
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
PPOTrainer()._update_actor(1, {})
if len(sys.argv) == 1:
    sys.exit(subprocess.run([sys.executable, "job.py", "child"]).returncode)
"""


def site_with(folder: Path, version: str, **files: str) -> Path:
    packages = ["verl", "verl/trainer", "verl/trainer/ppo", "verl/trainer/ppo/v1"]
    inits = {f"{package}/__init__.py": "" for package in packages}
    return make_distribution(folder / "site", "verl", version, inits | files)


def run_job(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(JOB)
    source = str(Path(__file__).parents[2] / "src")
    return profile(
        folder,
        "--tool",
        "phases",
        "--run",
        "run",
        "--",
        sys.executable,
        "job.py",
        PYTHONPATH=f"{site}:{source}",
    )


def test_missing_functions_and_modules_are_named_once_by_a_run_of_two_processes(tmp_path):
    site = site_with(tmp_path, "0.9.1", **{"verl/trainer/ppo/v1/trainer_base.py": TRAINER})

    done = run_job(tmp_path, site)

    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "hook not found" in line]
    base = "verl.trainer.ppo.v1.trainer_base.PPOTrainer"
    (step,) = [line for line in said if f"{base}.step:" in line]
    assert "hook not found in verl 0.9.1" in step
    assert "there is no function PPOTrainer.step; not measured: PPOTrainer.step (step)" in step
    (engine,) = [line for line in said if "verl.workers.engine.fsdp.transformer_impl" in line]
    assert "there is no such module" in engine and "FSDPEngine.optimizer_step (optimizer)" in engine
    assert not any(f"{base}._update_actor" in line for line in said)
    # What an older version had, this one is not expected to have.
    assert not any("dp_actor" in line for line in said)
    files = {file.name: file.read_text() for file in (tmp_path / "run" / "profiling" / "unresolved").iterdir()}
    assert len(files) == len(said)
    assert files[f"{base}.step"].strip() in step


def test_a_framework_that_is_not_imported_is_not_spoken_of(tmp_path):
    site = site_with(tmp_path, "0.9.1")
    (tmp_path / "job.py").write_text("print('done')\n")
    source = str(Path(__file__).parents[2] / "src")

    done = profile(
        tmp_path, "--tool", "phases", "--run", "run", "--", sys.executable, "job.py", PYTHONPATH=f"{site}:{source}"
    )

    assert done.returncode == 0, done.stderr
    assert "hook not found" not in done.stderr
    assert not (tmp_path / "run" / "profiling" / "unresolved").exists()


WORKERS = """
import torch

class ActorRolloutRefWorker:
    def init_model(self):
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def update_actor(self, step):
        for mini_batch in range(4):
            with torch.profiler.record_function(f"RL step {step} mini-batch {mini_batch}"):
                self.model(torch.ones(2, 4)).sum().backward()
                self.optimizer.step()
    def compute_log_prob(self):
        pass
    def update_weights(self):
        pass

class TrainingWorker:
    def train_mini_batch(self):
        pass
    def train_batch(self):
        pass
"""
RANK = """\
from verl.workers.engine_workers import ActorRolloutRefWorker
worker = ActorRolloutRefWorker()
worker.init_model()
for step in range(1, 7):
    worker.update_actor(step)
"""


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["--workers", "*", "--steps", "3:5"], {}),
        ([], {"NRL_NSYS_WORKER_PATTERNS": "*", "NRL_NSYS_PROFILE_STEP_RANGE": "3:5"}),
    ],
)
def test_six_rl_steps_of_four_mini_batches_are_profiled_by_rl_steps(tmp_path, flags, variables):
    site = site_with(tmp_path, "0.9.1", **{"verl/workers/__init__.py": "", "verl/workers/engine_workers.py": WORKERS})
    (tmp_path / "job.py").write_text(RANK)
    path = f"{site}:{Path(__file__).parents[2] / 'src'}"
    command = ["--tool", "torch", "--run", "run", *flags, "--", sys.executable, "job.py"]

    done = profile(tmp_path, *command, PYTHONPATH=path, **variables)

    assert done.returncode == 0, done.stderr
    (trace,) = (tmp_path / "run").rglob("*.torch.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    seen = {event["name"] for event in events if event.get("name", "").startswith("RL step")}
    assert seen == {f"RL step {step} mini-batch {number}" for step in (3, 4) for number in range(4)}
