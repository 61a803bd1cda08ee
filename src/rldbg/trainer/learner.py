"""The self-hosted half of a step: record the trajectories, compute advantages and old log probs, update the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rldbg.replay import Trajectory
from rldbg.trainer.observer import Observer
from rldbg.trainer.policy import RankUpdate
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import Shard, cut, in_sample_order, prepare, response_log_probs
from rldbg.weights import Fingerprint


class Policy(Protocol):
    """All ranks of the policy at once; lists are by rank."""

    def log_probs(self, shards: Sequence[Sequence[Shard]]) -> list[list[list[np.ndarray]]]: ...

    def update(self, step: int, shards: Sequence[Sequence[Shard]]) -> list[RankUpdate]: ...

    def weights(self) -> Any:
        """Rank 0's weights, or a handle that stands for them."""

    def save(self, folder: Path, step: int) -> None: ...

    def sent_weights(self) -> list[Fingerprint]: ...

    def close(self) -> None: ...


class SelfHostedLearner:
    """Trains the policy of this run on trajectories, step by step."""

    def __init__(self, *, recipe: Recipe, policy: Policy, observer: Observer) -> None:
        self._recipe = recipe
        self._policy = policy
        self._observer = observer

    def train(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """One step; the metrics it gives are sums or means over all ranks and micro-batches."""
        self._observer.trajectories(step, trajectories)
        self._observer.rollout_routing(step, trajectories)
        batch = prepare(trajectories, self._recipe.algorithm, max_length=self._recipe.max_response_length)
        if self._recipe.algorithm.old_log_probs == "policy":
            rows = self._policy.log_probs(cut(batch, self._recipe))
            batch = batch.with_old_log_probs(in_sample_order(rows, len(batch), self._recipe))
        else:
            batch = batch.with_old_log_probs([response_log_probs(item) for item in trajectories])
        self._observer.old_log_probs(step, batch)
        updates = self._policy.update(step, cut(batch, self._recipe))
        self._observer.end_step(step)
        return merge_updates(updates)

    def weights(self) -> Any:
        return self._policy.weights()

    def sent_weights(self) -> list[Fingerprint]:
        return self._policy.sent_weights()

    def save(self, folder: Path, step: int) -> None:
        self._policy.save(folder, step)

    def close(self) -> None:
        self._policy.close()
        self._observer.close()


def merge_updates(updates: Sequence[RankUpdate]) -> dict[str, float]:
    """One number per metric: losses add up over ranks and micro-batches, means are weighted by tokens."""
    micros = [metrics for update in updates for metrics in update.micro_batches]
    optimizer_steps = len(updates[0].grad_norms)
    merged = {
        name: sum(metrics[name] for metrics in micros) / optimizer_steps
        for name in ("loss", "pg_loss", "entropy", "kl_loss")
    }
    full = [metrics for metrics in micros if metrics["tokens"]]
    for name in sorted({name for metrics in full for name in metrics} - merged.keys() - {"tokens"}):
        merged[name] = _merge(name, full)
    merged["grad_norm"] = float(np.mean(updates[0].grad_norms))
    merged["learning_rate"] = updates[0].learning_rate
    return merged


def _merge(name: str, metrics: Sequence[Mapping[str, float]]) -> float:
    values = [item[name] for item in metrics]
    if name.endswith("/max"):
        return max(values)
    if name.endswith("/min"):
        return min(values)
    return float(np.average(values, weights=[item["tokens"] for item in metrics]))
