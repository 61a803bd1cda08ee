"""The loop: tasks -> trajectories -> update -> new weights for the rollout, strictly one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rldbg.core import SampleId
from rldbg.replay import Trajectory
from rldbg.trainer.checkpoint import prune_checkpoints
from rldbg.trainer.metrics import Tracker, rollout_metrics
from rldbg.trainer.observer import Observer
from rldbg.trainer.rollout import RolloutTask
from rldbg.trainer.settings import Recipe
from rldbg.trainer.tasks import Problem, groups_of_step
from rldbg.weights import Fingerprint

OnStep = Callable[[int, dict[str, float]], None]


class Rollouts(Protocol):
    """The source of trajectories: workers that generate, a recording, ..."""

    def collect(self, step: int, tasks: Sequence[RolloutTask]) -> list[Trajectory]:
        """One trajectory per task, in the order of the tasks."""

    def publish(self, weights: Any, policy_version: int) -> None:
        """Sets new weights; everything generated from here on uses them."""

    def held_weights(self) -> list[list[Fingerprint]]:
        """The fingerprints of what each replica holds; empty where nothing can tell."""

    def close(self) -> None: ...


class Learner(Protocol):
    """What trains the policy: ranks of our own, or a training service."""

    def train(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]: ...

    def weights(self) -> Any:
        """What `Rollouts.publish` takes."""

    def sent_weights(self) -> list[Fingerprint]:
        """The fingerprints of what `weights` gave last; empty where they are not known."""

    def save(self, folder: Path, step: int) -> None: ...

    def close(self) -> None: ...


class Controller:
    """Drives a run. It owns nothing: the caller closes the parts."""

    def __init__(
        self,
        *,
        recipe: Recipe,
        problems: tuple[Problem, ...],
        rollouts: Rollouts,
        learner: Learner,
        trackers: Sequence[Tracker],
        checkpoints: Path,
        observer: Observer,
        on_step: OnStep = lambda _step, _metrics: None,
    ) -> None:
        self._recipe = recipe
        self._problems = problems
        self._rollouts = rollouts
        self._learner = learner
        self._trackers = trackers
        self._checkpoints = checkpoints
        self._observer = observer
        self._on_step = on_step

    def train(self, first_step: int = 0) -> dict[str, float]:
        """Runs the remaining steps; returns the metrics of the last one."""
        metrics: dict[str, float] = {}
        self._publish(first_step)
        for step in range(first_step, self._recipe.steps):
            metrics = self._step(step)
            for tracker in self._trackers:
                tracker.log(step, metrics)
            self._on_step(step, metrics)
        return metrics

    def _step(self, step: int) -> dict[str, float]:
        times: dict[str, float] = {}
        with _timed(times, "time/step"):
            with _timed(times, "time/rollout"):
                trajectories = self._rollouts.collect(step, self._tasks(step))
            with _timed(times, "time/update"):
                metrics = self._learner.train(step, trajectories)
            with _timed(times, "time/weights"):
                self._publish(step + 1)
        self._save_if_due(step + 1)
        return rollout_metrics(trajectories) | metrics | times | {"time": time.time()}

    def _publish(self, version: int) -> None:
        self._rollouts.publish(self._learner.weights(), version)
        if version < self._recipe.steps and self._observer.recorder.wants("weights", version):
            self._observer.weights(version, self._learner.sent_weights(), self._rollouts.held_weights())

    def _tasks(self, step: int) -> list[RolloutTask]:
        """The step's samples in their order: group by group, runs 0, 1, 2 ... in each."""
        groups = groups_of_step(self._problems, self._recipe.data, self._recipe.seed, step)
        return [
            RolloutTask(SampleId(group.group_id, run_id), group.problem)
            for group in groups
            for run_id in range(self._recipe.data.samples_per_prompt)
        ]

    def _save_if_due(self, next_step: int) -> None:
        every = self._recipe.checkpoint.every_n_steps
        if every and next_step % every == 0:
            self._learner.save(self._checkpoints / f"step_{next_step:06d}", next_step)
            prune_checkpoints(self._checkpoints, self._recipe.checkpoint.keep_last)


@contextmanager
def _timed(times: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    times[name] = time.perf_counter() - started
