"""The `remote_api` half of a step: the policy lives in a training service, which is sent datums and trains on them.

The split into mini-batches, ranks and micro-batches is that of the self-hosted mode, one request per rank: the service
adds gradients in the order in which the ranks would, and both modes give the same losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import UsageError
from rldbg.replay import Trajectory
from rldbg.trainer.checkpoint import FoundCheckpoint, save_remote_checkpoint
from rldbg.trainer.model import build_model
from rldbg.trainer.observer import Observer
from rldbg.trainer.remote_api.client import RemoteSampler, ServiceConnection, TrainingClient
from rldbg.trainer.remote_api.datums import datums_of
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import Shard, StepBatch, cut, in_sample_order, prepare, response_log_probs
from rldbg.trainer.steps import learning_rate
from rldbg.trainer.tasks import load_problems
from rldbg.trainer.tokenizer import load_tokenizer
from rldbg.trainer.warm_start import warm_start
from rldbg.weights import Fingerprint


def check_remote(recipe: Recipe) -> None:
    """What a training service cannot do for us."""
    if recipe.algorithm.kl_coeff:
        raise UsageError("remote_api has no reference model for a KL term", "set algorithm.kl_coeff=0")


class RemoteLearner:
    """Trains a model on the service, step by step."""

    def __init__(self, *, recipe: Recipe, observer: Observer) -> None:
        self._recipe = recipe
        self._observer = observer
        self._tokenizer = load_tokenizer(recipe.model.path)
        self._client = TrainingClient(ServiceConnection(recipe.remote), base_model=recipe.model.path, seed=recipe.seed)
        self._policy_version = 0

    def start(self, checkpoint: FoundCheckpoint | None) -> dict[str, Any]:
        """Gives the service the warm-started weights, or lets it continue with those it saved."""
        recipe = self._recipe
        if checkpoint is not None and checkpoint.remote is not None:
            self._client.load(checkpoint.remote)
            self._policy_version = checkpoint.step
            return {"resumed_from": checkpoint.remote}
        if recipe.warm_start.max_steps == 0:
            return {}
        model = build_model(recipe.model, vocabulary_size=self._tokenizer.vocabulary_size, seed=recipe.seed)
        problems = load_problems(recipe.data)
        steps, success = warm_start(model, self._tokenizer, problems, recipe.warm_start, seed=recipe.seed)
        self._client.put_weights(model.state_dict())
        return {"warm_start": {"steps": steps, "expected_success": success}}

    def train(self, step: int, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        recipe = self._recipe
        batch = prepare(trajectories, recipe.algorithm, max_length=recipe.max_response_length)
        self._observer.prepared_trajectories(step, batch)
        batch = batch.with_old_log_probs(self._old_log_probs(batch))
        self._observer.datums(step, trajectories, list(datums_of(batch)))
        rate = learning_rate(recipe.optimizer, step, recipe.steps)
        passes: list[dict[str, float]] = []
        norms: list[float] = []
        for epoch in range(recipe.policy.epochs):
            for number, shards in enumerate(zip(*cut(batch, recipe), strict=True)):
                answers = [self._forward_backward(shard) for shard in shards]
                update = self._client.optimizer_step(self._adam(rate))
                self._observer.training_metrics(step, epoch, number, {"passes": answers, "optimizer": update})
                passes += answers
                norms.append(update["grad_norm"])
        self._policy_version = step + 1
        self._observer.end_step(step)
        tokens = [answer["tokens"] for answer in passes]
        return {
            "loss": sum(answer["loss"] for answer in passes) / len(norms),
            "entropy": float(np.average([answer["entropy"] for answer in passes], weights=tokens)),
            "grad_norm": float(np.mean(norms)),
            "learning_rate": rate,
        }

    def sent_weights(self) -> list[Fingerprint]:
        """The service keeps its weights to itself."""
        return []

    def weights(self) -> RemoteSampler:
        """The newest weights, frozen for sampling."""
        session, eos_id = self._client.export_sampler(), self._tokenizer.eos_id
        return RemoteSampler(self._recipe.remote, self._recipe.inference, session, self._policy_version, eos_id)

    def save(self, folder: Path, step: int) -> None:
        save_remote_checkpoint(folder, self._client.save(folder.name), step=step)

    def close(self) -> None:
        self._observer.close()

    def _old_log_probs(self, batch: StepBatch) -> list[np.ndarray]:
        """Log probs of the service's policy before its update, in the micro-batches of the coming update; or those of
        the rollout."""
        if self._recipe.algorithm.old_log_probs == "rollout":
            return [response_log_probs(item) for item in batch.trajectories]
        config = {"temperature": self._recipe.inference.temperature, **self._micro_batches()}
        rows = [
            [
                self._response_rows(shard.batch, self._client.forward(self._json(shard.batch), config))
                for shard in shards
            ]
            for shards in cut(batch, self._recipe)
        ]
        return in_sample_order(rows, len(batch), self._recipe)

    def _response_rows(self, batch: StepBatch, outputs: Sequence[Sequence[float]]) -> list[np.ndarray]:
        return [
            np.asarray(output, dtype=np.float32)[item.prompt_length - 1 :]
            for item, output in zip(batch.trajectories, outputs, strict=True)
        ]

    def _json(self, batch: StepBatch) -> list[dict[str, Any]]:
        return [datum.to_json(self._policy_version) for datum in datums_of(batch)]

    def _forward_backward(self, shard: Shard) -> dict[str, float]:
        algorithm = self._recipe.algorithm
        config: dict[str, Any] = {
            "aggregation": algorithm.aggregation,
            "denominator": shard.denominator,
            "entropy_coeff": algorithm.entropy_coeff,
            "temperature": self._recipe.inference.temperature,
            **self._micro_batches(),
        }
        if algorithm.loss == "ppo":
            config |= {
                "clip_low_threshold": 1 - algorithm.clip_low,
                "clip_high_threshold": 1 + algorithm.clip_high,
            }
        return self._client.forward_backward(algorithm.loss, config, self._json(shard.batch))

    def _micro_batches(self) -> dict[str, int]:
        return {"micro_batch_size": self._recipe.policy.micro_batch_size}

    def _adam(self, rate: float) -> dict[str, float]:
        optimizer = self._recipe.optimizer
        return {
            "learning_rate": rate,
            "beta1": optimizer.beta1,
            "beta2": optimizer.beta2,
            "eps": optimizer.eps,
            "weight_decay": optimizer.weight_decay,
            "grad_clip_norm": optimizer.max_grad_norm,
        }
