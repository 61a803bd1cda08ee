"""`rldbg track` with the published W&B, MLflow and trackio, each in its offline mode."""

import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
from client_environments import environment_with

import rldbg
from ui_recordings import two_turns

PACKAGES = (
    "wandb", "mlflow-skinny", "trackio", "numpy", "click", "rich", "pydantic", "omegaconf", "safetensors", "psutil",
    "debugpy", "PyYAML", "prompt_toolkit", "httpx", "isal",
)  # fmt: skip

pytestmark = pytest.mark.timeout(600)


def test_each_tracker_holds_the_numbers_of_every_step(tmp_path):
    python = environment_with("trackers", PACKAGES)
    run_folder = two_turns(tmp_path / "run" / "recording").parent
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
    (offline,) = (run_folder / "wandb").glob("offline-run-*/*.wandb")
    assert b"checks/failed" in offline.read_bytes()
    (metric,) = (tmp_path / "mlruns").glob("*/*/metrics/checks/failed")
    assert [line.split()[2] for line in metric.read_text().splitlines()] == ["0", "1", "2"]
    with sqlite3.connect(tmp_path / "trackio" / "rldbg.db") as database:
        rows = database.execute("select step, metrics from metrics order by step").fetchall()
    assert [step for step, _ in rows] == [0, 1, 2] and all("checks/failed" in str(text) for _, text in rows)
