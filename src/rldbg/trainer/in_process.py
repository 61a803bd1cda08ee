"""The whole loop in one process, without Ray: one rank, one rollout worker, one sampler. For debuggers and tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.replay import Trajectory
from rldbg.trainer.distributed import Rendezvous
from rldbg.trainer.inference_server import InferenceServer
from rldbg.trainer.observer import RecordingPlan
from rldbg.trainer.policy import PolicyWorker, RankUpdate
from rldbg.trainer.rollout import Task, make_rollout_worker
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import Shard


class InProcessPolicy:
    """A policy of one rank."""

    def __init__(self, recipe: Recipe, recording: RecordingPlan) -> None:
        self._worker = PolicyWorker(recipe=recipe, rank=0, recording=recording)

    def start(self, checkpoint: Path | None = None) -> dict[str, Any]:
        return self._worker.start(Rendezvous("", 0, 1), checkpoint)

    def log_probs(self, shards: Sequence[Sequence[Shard]]) -> list[list[list[np.ndarray]]]:
        return [self._worker.log_probs(shards[0])]

    def update(self, step: int, shards: Sequence[Sequence[Shard]]) -> list[RankUpdate]:
        return [self._worker.update(step, shards[0])]

    def weights(self) -> Any:
        return self._worker.weights()

    def save(self, folder: Path, step: int) -> None:
        self._worker.save(folder, step)

    def close(self) -> None:
        self._worker.close()


class InProcessRollouts:
    """A rollout worker that asks a sampler beside it."""

    def __init__(self, recipe: Recipe) -> None:
        self._server = InferenceServer(recipe=recipe)
        self._worker = make_rollout_worker(recipe, self._server.generate)

    def collect(self, step: int, tasks: Sequence[Task]) -> list[Trajectory]:
        return self._worker.run(step, tasks)

    def publish(self, weights: Any, policy_version: int) -> None:
        self._server.load_weights(weights, policy_version)

    def close(self) -> None:
        """Nothing outlives the process."""


class InProcessRemoteRollouts:
    """A rollout worker in this process that asks a training service."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._sampler: Any = None

    def collect(self, step: int, tasks: Sequence[Task]) -> list[Trajectory]:
        return make_rollout_worker(self._recipe, self._sampler.generate).run(step, tasks)

    def publish(self, weights: Any, policy_version: int) -> None:
        self._sampler = weights

    def close(self) -> None:
        """Nothing outlives the process."""
