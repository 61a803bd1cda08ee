"""The whole loop in one process, without Ray: ranks are threads, one rollout worker, one sampler.

For debuggers, tests and the bug zoo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rldbg.replay import Trajectory
from rldbg.trainer.inference_server import InferenceServer
from rldbg.trainer.observer import RecordingPlan
from rldbg.trainer.policy import PolicyWorker, RankUpdate
from rldbg.trainer.rollout import Task, make_rollout_worker
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import Shard
from rldbg.trainer.thread_ranks import ThreadMeeting

Result = TypeVar("Result")


class InProcessPolicy:
    """A policy whose ranks are threads of this process; a single rank stays in the caller's thread."""

    def __init__(self, recipe: Recipe, recording: RecordingPlan) -> None:
        ranks = recipe.policy.ranks
        self._meeting = ThreadMeeting(ranks)
        self._workers = [PolicyWorker(recipe=recipe, rank=rank, recording=recording) for rank in range(ranks)]

    def start(self, checkpoint: Path | None = None) -> dict[str, Any]:
        return self._each(lambda worker, _: worker.start(self._meeting, checkpoint))[0]

    def log_probs(self, shards: Sequence[Sequence[Shard]]) -> list[list[list[np.ndarray]]]:
        return self._each(lambda worker, rank: worker.log_probs(shards[rank]))

    def update(self, step: int, shards: Sequence[Sequence[Shard]]) -> list[RankUpdate]:
        return self._each(lambda worker, rank: worker.update(step, shards[rank]))

    def weights(self) -> Any:
        return self._workers[0].weights()

    def save(self, folder: Path, step: int) -> None:
        self._each(lambda worker, _: worker.save(folder, step))

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _each(self, call: Callable[[PolicyWorker, int], Result]) -> list[Result]:
        if len(self._workers) == 1:
            return [call(self._workers[0], 0)]
        return self._meeting.each([partial(call, worker, rank) for rank, worker in enumerate(self._workers)])


class InProcessRollouts:
    """A rollout worker with a sampler in the same process."""

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
