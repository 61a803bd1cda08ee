"""One rank of the policy: model, optimizer, and the two calls of each step. A plain class; Ray wraps it."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import Identity
from rldbg.replay.loss import choose_device
from rldbg.trainer import distributed
from rldbg.trainer.capsule import CapsuleWriter
from rldbg.trainer.checkpoint import load_checkpoint, save_checkpoint
from rldbg.trainer.determinism import fix_threads
from rldbg.trainer.model import build_model
from rldbg.trainer.observer import LoopPlace, Observer, RecordingPlan
from rldbg.trainer.routing import captured_routes
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import Shard, micro_batches
from rldbg.trainer.steps import (
    MicroBatch,
    apply_gradients,
    forward,
    learning_rate,
    make_optimizer,
    micro_batch_metrics,
    train_micro_batch,
)
from rldbg.trainer.tasks import load_problems
from rldbg.trainer.tokenizer import load_tokenizer
from rldbg.trainer.warm_start import start_key, warm_start
from rldbg.weights import Fingerprint, fingerprints


@dataclass(frozen=True, slots=True)
class RankUpdate:
    """The result of one rank's update: one mapping of metrics per micro-batch, one gradient norm per mini-batch."""

    micro_batches: list[dict[str, float]]
    grad_norms: list[float]
    learning_rate: float


class PolicyWorker:
    """One rank. All ranks get the same calls in the same order; between calls their parameters are equal."""

    def __init__(self, *, recipe: Recipe, rank: int, recording: RecordingPlan) -> None:
        self._recipe = recipe
        self._rank = rank
        self._threads = fix_threads(recipe.threads, deterministic=recipe.deterministic)
        self._device = choose_device(recipe.policy.device, local_rank=rank)
        self._tokenizer = load_tokenizer(recipe.model.path)
        self._model = build_model(recipe.model, vocabulary_size=self._tokenizer.vocabulary_size, seed=recipe.seed)
        self._reference: Any = None
        self._ranks: distributed.Ranks = distributed.ProcessRanks(1)
        identity = Identity(role="policy", rank=rank, world_size=recipe.policy.ranks, coordinates={"dp": rank})
        self._observer = Observer(recording.records, identity)
        self._capsules = CapsuleWriter(recording, identity, recipe)
        self._starting_weights = recording.starting_weights
        self._records_weights = recording.records.enabled and "weights" in (recording.records.kinds or ())
        self._sent: list[Fingerprint] = []

    def __repr__(self) -> str:
        return f"policy/{self._rank}"

    def listen(self, host: str) -> int:
        """Rank 0's port for the others."""
        return distributed.free_port(host, self._recipe.policy.port)

    def start(self, meeting: distributed.Meeting, checkpoint: Path | None = None) -> dict[str, Any]:
        """Joins the other ranks and takes its starting weights: warm-started by rank 0, or a checkpoint's.

        The reference of a KL term is what training began with, so a resumed run warm-starts it again.
        """
        facts: dict[str, Any] = {"process_threads": self._threads}
        needs_reference = self._recipe.algorithm.kl_coeff != 0
        if self._rank == 0 and (checkpoint is None or needs_reference):
            facts["warm_start"] = self._warm_start()
        self._model.to(self._device)
        self._ranks = meeting.join(self._rank, self._device)
        distributed.broadcast_parameters(self._model, self._ranks)
        if needs_reference:
            self._reference = copy.deepcopy(self._model).requires_grad_(False)
        if self._recipe.policy.fsdp:
            distributed.shard(self._model)
        self._optimizer = make_optimizer(self._model.parameters(), self._recipe.optimizer)
        if checkpoint is not None:
            load_checkpoint(checkpoint, self._model, self._optimizer)
        return facts

    def _warm_start(self) -> dict[str, Any]:
        started = time.monotonic()
        problems, settings, seed = load_problems(self._recipe.data), self._recipe.warm_start, self._recipe.seed
        key = start_key(self._model, problems, settings, seed=seed)
        known = self._starting_weights.load(self._model, key)
        steps, success = known or warm_start(self._model, self._tokenizer, problems, settings, seed=seed)
        if self._recipe.model.path == "tiny":
            self._starting_weights.save(self._model, key, steps, success)
        facts = {"steps": steps, "expected_success": success, "seconds": time.monotonic() - started}
        return facts | ({"from": str(self._starting_weights.replayed)} if known else {})

    def log_probs(self, shards: Sequence[Shard]) -> list[list[np.ndarray]]:
        """Log probs of every response token under the policy as it is, by the micro-batches of the update to come."""
        rows = [[row for micro in self._micro_batches(shard) for row in self._log_prob_rows(micro)] for shard in shards]
        if self._recipe.policy.fsdp:
            distributed.reshard(self._model)
        return rows

    def _log_prob_rows(self, micro: MicroBatch) -> list[np.ndarray]:
        import torch

        with torch.no_grad():
            result = forward(self._model, micro.batch, temperature=self._recipe.inference.temperature)
        lengths = micro.batch.response_lengths.tolist()
        return [row[:length].cpu().numpy() for row, length in zip(result.log_probs, lengths, strict=True)]

    def update(self, step: int, shards: Sequence[Shard]) -> RankUpdate:
        """Trains on this rank's shards: each of them one optimizer step with the other ranks, once per epoch."""
        rate = learning_rate(self._recipe.optimizer, step, self._recipe.steps)
        self._capsules.before(step, self._model, self._optimizer, shards, pad_id=self._tokenizer.pad_id)
        metrics, norms = [], []
        for epoch in range(self._recipe.policy.epochs):
            for number, shard in enumerate(shards):
                place = LoopPlace(step, epoch, number)
                metrics += self._accumulate(place, shard)
                self._capsules.local_gradient(place, self._model)
                if not self._recipe.policy.fsdp:
                    distributed.sum_gradients(self._model, self._ranks, in_rank_order=self._recipe.deterministic)
                self._observer.gradients(place, self._model)
                self._capsules.reduced_gradient(place, self._model)
                norms.append(
                    apply_gradients(
                        self._model, self._optimizer, rate=rate, max_grad_norm=self._recipe.optimizer.max_grad_norm
                    )
                )
                self._observer.parameters(place, self._model)
                self._capsules.after(place, self._model)
        self._observer.end_step(step)
        self._capsules.end_step(step)
        return RankUpdate(metrics, norms, rate)

    def _accumulate(self, place: LoopPlace, shard: Shard) -> list[dict[str, float]]:
        """Forward and backward over the shard's micro-batches; their gradients add up in the model."""
        recipe, collected = self._recipe, []
        micros = list(self._micro_batches(shard))
        wants_routes = self._observer.recorder.wants("routing", place.step)
        for number, plain in enumerate(micros):
            micro = self._with_reference(plain)
            if recipe.policy.fsdp:
                self._model.set_requires_gradient_sync(number == len(micros) - 1)
            with captured_routes(self._model if wants_routes else None) as routes:
                result, terms = train_micro_batch(
                    self._model,
                    micro,
                    recipe.algorithm,
                    denominator=shard.denominator,
                    temperature=recipe.inference.temperature,
                    # FSDP averages over ranks; everything else here adds up.
                    loss_scale=recipe.policy.ranks if recipe.policy.fsdp else 1,
                )
            metrics = micro_batch_metrics(result, terms, micro)
            here = replace(place, micro=number)
            self._observer.routing(here, micro.batch, routes)
            self._observer.micro_batch(here, micro, result, terms, metrics, recipe.algorithm, shard.denominator)
            self._capsules.micro_batch(here, micro, result, terms)
            collected.append(metrics)
        return collected

    def _micro_batches(self, shard: Shard) -> Iterator[MicroBatch]:
        return micro_batches(
            shard.batch,
            size=self._recipe.policy.micro_batch_size,
            pad_id=self._tokenizer.pad_id,
            device=self._device,
        )

    def _with_reference(self, micro: MicroBatch) -> MicroBatch:
        import torch

        if self._reference is None:
            return micro
        with torch.no_grad():
            result = forward(self._reference, micro.batch, temperature=self._recipe.inference.temperature)
        return replace(micro, reference_log_probs=result.log_probs)

    def weights(self) -> dict[str, Any]:
        """All weights on CPU, from rank 0; the other ranks return nothing but must be called too."""
        if self._recipe.policy.fsdp:
            sent = distributed.whole_state(self._model)
        else:
            own = self._model.state_dict() if self._rank == 0 else {}
            sent = {name: tensor.cpu() for name, tensor in own.items()}
        self._sent = fingerprints(sent) if self._records_weights else []
        return sent

    def sent_weights(self) -> list[Fingerprint]:
        """The fingerprints of what `weights` gave last, if weights are recorded; empty on other ranks than 0."""
        return self._sent

    def save(self, folder: Path, step: int) -> None:
        save_checkpoint(folder, self._model, self._optimizer, step=step, is_writer=self._rank == 0)

    def close(self) -> None:
        """Finishes the recording and leaves the process group."""
        self._observer.close()
        self._capsules.close()
        self._ranks.leave()
