"""A hook that a framework no longer has is named once per run, on stderr and in the run folder."""

import subprocess
import sys
from pathlib import Path

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
