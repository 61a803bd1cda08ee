"""`rldbg track` with the published W&B, MLflow and trackio, each in its offline mode."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from client_environments import environment_with

import rldbg
from rldbg.recording import open as open_recording
from rldbg.tracking import StepMeasurements
from ui_recordings import two_turns

PACKAGES = (
    "wandb==0.31.0", "mlflow-skinny==3.17.2", "trackio==0.43.0", "numpy", "click", "rich", "pydantic", "omegaconf",
    "safetensors", "psutil", "debugpy", "PyYAML", "prompt_toolkit", "httpx", "isal",
)  # fmt: skip

pytestmark = pytest.mark.timeout(600)


def test_each_tracker_holds_the_numbers_of_every_step(tmp_path):
    python = environment_with("trackers", PACKAGES)
    run_folder = two_turns(tmp_path / "run" / "recording", shift=0.5).parent
    environment = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        "PYTHONPATH": str(Path(rldbg.__file__).parents[1]),
        "HOME": str(tmp_path),
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    words = [word for name in ("wandb", "mlflow", "trackio") for word in ("--to", name)]
    done = subprocess.run(
        [str(python), "-m", "rldbg", "track", str(run_folder), *words, "--name", "try"],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 steps logged to wandb, mlflow, trackio\n"
    read = subprocess.run(
        [str(python), str(Path(__file__).with_name("trackers_job.py")), str(tmp_path)],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert read.returncode == 0, read.stderr
    measured = StepMeasurements(open_recording(run_folder / "recording"))
    expected = {str(step): measured.of(step) for step in range(3)}
    assert expected["1"]["checks/failed"] >= 1 and "rollout/k3" in expected["1"]
    for tracker, found in json.loads(read.stdout).items():
        assert found.keys() == expected.keys(), tracker
        for step, numbers in expected.items():
            assert {name: found[step][name] for name in numbers} == pytest.approx(numbers, nan_ok=True), (tracker, step)
