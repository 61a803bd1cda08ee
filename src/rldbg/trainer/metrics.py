"""What a run reports per step: RUN/metrics.jsonl always, and experiment trackers where the recipe names them."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rldbg.core import PrerequisiteError, redact
from rldbg.replay import Trajectory
from rldbg.trainer.settings import LoggingSettings


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of a step's samples alone; success is the score if the rollout gave one."""
    rewards = np.asarray([item.reward for item in trajectories], dtype=np.float64)
    success = [float(item.extra_fields.get("score", item.reward > 0)) for item in trajectories]
    return {
        "success_rate": float(np.mean(success)),
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "response_length/mean": float(np.mean([item.response_length for item in trajectories])),
        "samples": float(len(trajectories)),
    }


class Tracker(NamedTuple):
    """An experiment tracker: what logs the metrics of a step, and what ends it."""

    log: Callable[[int, dict[str, float]], object]
    close: Callable[[], object]


def _metrics_file(path: Path) -> Tracker:
    """metrics.jsonl: one object per step, written whole, NaN as null."""
    file = path.open("a", encoding="utf-8")

    def log(step: int, metrics: dict[str, float]) -> None:
        row = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        file.write(json.dumps({"step": step, **row}) + "\n")
        file.flush()

    return Tracker(log, file.close)


def open_trackers(
    settings: LoggingSettings, run_folder: Path, *, name: str, config: Mapping[str, Any]
) -> list[Tracker]:
    """metrics.jsonl and every configured tracker; an unavailable one is an error before the run starts."""
    trackers = [
        open_tracker(tracker, run_folder, project=settings.project, name=name, config=config)
        for tracker in settings.trackers
    ]
    return [_metrics_file(run_folder / "metrics.jsonl"), *trackers]


def open_tracker(tracker: str, run_folder: Path, *, project: str, name: str, config: Mapping[str, Any]) -> Tracker:
    """One tracker by its name; secrets of the configuration stay here."""
    makers = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}
    try:
        return makers[tracker](run_folder, project, name, redact(dict(config)))
    except ImportError as error:
        raise PrerequisiteError(f"{tracker} is not installed: {error}", f"pip install {tracker}") from error


@contextmanager
def _starting(tracker: str, its_own: type[Exception] = OSError) -> Iterator[None]:
    """Wraps the start of another library: its failure is not a bug of rldbg."""
    try:
        yield
    except (its_own, OSError, ValueError) as error:
        what = f"the tracker {tracker} does not start: {error}"
        raise PrerequisiteError(what, f"do what {tracker} asks for, or leave it out") from error


def _tensorboard(run_folder: Path, _project: str, _name: str, _config: Mapping[str, Any]) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    with _starting("tensorboard"):
        writer = SummaryWriter(str(run_folder / "logs" / "tensorboard"))

    def log(step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return Tracker(log, writer.close)


def _wandb(run_folder: Path, project: str, name: str, config: Mapping[str, Any]) -> Tracker:
    import wandb

    with _starting("wandb", wandb.Error):
        run = wandb.init(project=project, name=name, config=dict(config), dir=str(run_folder))
    return Tracker(lambda step, metrics: run.log(metrics, step=step), run.finish)


def _mlflow(_run_folder: Path, project: str, name: str, config: Mapping[str, Any]) -> Tracker:
    import mlflow

    with _starting("mlflow", mlflow.MlflowException):
        mlflow.set_experiment(project)
        mlflow.start_run(run_name=name)
        mlflow.log_dict(dict(config), "recipe.json")
    return Tracker(lambda step, metrics: mlflow.log_metrics(metrics, step=step), mlflow.end_run)


def _trackio(_run_folder: Path, project: str, name: str, config: Mapping[str, Any]) -> Tracker:
    import trackio

    with _starting("trackio"):
        run = trackio.init(project=project, name=name, config=dict(config))
    return Tracker(lambda step, metrics: run.log(metrics, step=step), trackio.finish)
