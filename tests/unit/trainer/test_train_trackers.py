"""Where metrics go: the run folder always, other libraries if they are there and willing."""

import json
import sys
from types import ModuleType
from typing import Any

import pytest

from rldbg.core import PrerequisiteError
from rldbg.trainer.metrics import open_trackers
from rldbg.trainer.settings import LoggingSettings


def opened(folder, *names, config=None):
    return open_trackers(LoggingSettings(trackers=names), folder, name="run", config=config or {})


def test_metrics_are_lines_and_nan_is_null(tmp_path):
    (tracker,) = opened(tmp_path)
    tracker.log(3, {"loss": 0.5, "kl": float("nan")})
    tracker.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 3, "loss": 0.5, "kl": None}


def test_tensorboard_gets_every_metric_of_every_step(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    file, tracker = opened(tmp_path, "tensorboard")
    for step in range(3):
        tracker.log(step, {"loss": step / 2, "reward/mean": 1.0})
    tracker.close()
    file.close()
    events = accumulator.EventAccumulator(str(tmp_path / "logs" / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "reward/mean"}
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(0, 0.0), (1, 0.5), (2, 1.0)]


def test_a_library_that_is_missing_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(PrerequisiteError, match="mlflow") as caught:
        opened(tmp_path, "mlflow")
    assert caught.value.hint == "pip install mlflow"


def test_a_library_that_does_not_start_is_no_bug_of_ours_and_sees_no_secret(tmp_path, monkeypatch):
    seen: dict[str, Any] = {}

    def init(**settings):
        seen.update(settings)
        raise library.Error("No API key configured. Use `wandb login` to log in.")

    library = ModuleType("wandb")
    library.init = init
    library.Error = type("Error", (Exception,), {})
    monkeypatch.setitem(sys.modules, "wandb", library)
    with pytest.raises(PrerequisiteError, match="wandb login"):
        opened(tmp_path, "wandb", config={"remote": {"api_key": "tml-secret"}, "steps": 3})
    assert seen["config"]["steps"] == 3 and "tml-secret" not in str(seen)
