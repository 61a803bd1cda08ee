"""What the trainer records. The only module of the trainer that knows the fields of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rldbg.core import Identity
from rldbg.recording import Later, Ragged, Recorder, RecorderSettings
from rldbg.replay import Trajectory, TrajectoryBatch, prompt_hashes
from rldbg.trainer.routing import Routes, padded_routes
from rldbg.trainer.settings import AlgorithmSettings
from rldbg.trainer.warm_start import StartingWeights
from rldbg.weights import Fingerprint, snapshot_fields

if TYPE_CHECKING:
    from rldbg.trainer.remote_api.datums import ClientDatum
    from rldbg.trainer.shards import StepBatch
    from rldbg.trainer.steps import Forward, LossTerms, MicroBatch

# A token of a trajectory: its id, its mask, its log prob and the version it was sampled with.
_TOKEN_BYTES = 8 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """What the processes of a run record: the kinds of the `debug:` block, capsules with the code's version, and the
    weights it starts from."""

    records: RecorderSettings
    capsules: RecorderSettings
    code: Mapping[str, Any]
    starting_weights: StartingWeights


@dataclass(frozen=True, slots=True)
class LoopPlace:
    """Where in the loop a record is made."""

    step: int
    epoch: int = 0
    mini_batch: int = 0
    micro: int = 0


class Observer:
    """Turns the data of the loop into records."""

    def __init__(self, settings: RecorderSettings, identity: Identity) -> None:
        self.recorder = Recorder.from_settings(settings, identity)

    def trajectories(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Records trajectories as the rollout returned them."""
        if self.recorder.wants("trajectory", step):
            # Nobody changes trajectories: the recorder's own thread makes columns of them.
            tokens = sum(len(item.tokens) for item in trajectories)
            made = Later(partial(columns, tuple(trajectories)), tokens * _TOKEN_BYTES)
            self.recorder.record("trajectory", **_place(step, trajectories), columns=made)

    def prepared_trajectories(self, step: int, batch: StepBatch) -> None:
        """Records trajectories with their advantages, one per trained token."""
        if not self.recorder.wants("prepared_trajectories", step):
            return
        pairs = zip(batch.trajectories, batch.advantages, strict=True)
        advantages = Ragged.from_rows([item.loss_mask * value for item, value in pairs], np.float32)
        where = _place(step, batch.trajectories)
        self.recorder.record("prepared_trajectories", **where, **columns(batch.trajectories), advantages=advantages)

    def datums(self, step: int, trajectories: Sequence[Trajectory], datums: Sequence[ClientDatum]) -> None:
        """What the training service is sent."""
        if not self.recorder.wants("datums", step):
            return
        names = ("input_tokens", "target_tokens", "logprobs", "advantages", "loss_mask")
        fields: dict[str, Any] = {name: Ragged.from_rows([getattr(datum, name) for datum in datums]) for name in names}
        self.recorder.record(
            "datums", **_place(step, trajectories), prompt_hashes=prompt_hashes(trajectories), **fields
        )

    def training_metrics(self, step: int, epoch: int, mini_batch: int, metrics: Mapping[str, Any]) -> None:
        """What the training service answered."""
        self.recorder.record("training_metrics", step=step, epoch=epoch, mini_batch=mini_batch, metrics=dict(metrics))

    def old_log_probs(self, step: int, batch: StepBatch) -> None:
        if not self.recorder.wants("old_log_probs", step):
            return
        width = max(len(row) for row in batch.old_log_probs)
        padded = np.zeros((len(batch), width), dtype=np.float32)
        for number, row in enumerate(batch.old_log_probs):
            padded[number, : len(row)] = row
        self.recorder.record(
            "old_log_probs",
            **_place(step, batch.trajectories),
            prompt_hashes=prompt_hashes(batch.trajectories),
            old_log_probs=padded,
            batch_info={"batch_size": len(batch)},
        )

    def micro_batch(
        self,
        place: LoopPlace,
        micro: MicroBatch,
        result: Forward,
        terms: LossTerms,
        metrics: dict[str, float],
        algorithm: AlgorithmSettings,
        denominator: float,
    ) -> None:
        """`batch_inputs`, `forward_data`, `loss` and `is_loss_debug` of one forward and backward pass."""
        batch, where = micro.batch, _where(place, micro.batch)
        log_probs, reference = result.log_probs.detach(), micro.reference_log_probs
        if self.recorder.wants("batch_inputs", place.step):
            self.recorder.record(
                "batch_inputs",
                **where,
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                position_ids=batch.position_ids,
            )
        self.recorder.record(
            "forward_data",
            **where,
            log_probs=log_probs,
            entropy=result.entropy.detach(),
            response_mask=batch.response_mask,
            input_ids=batch.input_ids,
            **({} if reference is None else {"ref_log_probs": reference}),
        )
        extra = {"epoch": place.epoch, "batch_idx": place.mini_batch}
        self.recorder.record(
            "loss",
            **where,
            loss=metrics["loss"],
            pg_loss=metrics["pg_loss"],
            entropy_loss=metrics["entropy"],
            kl_loss=metrics["kl_loss"],
            metrics=metrics,
            extra_info=extra | {"aggregation": algorithm.aggregation, "denominator": denominator},
        )
        if self.recorder.wants("is_loss_debug", place.step):
            self.recorder.record(
                "is_loss_debug",
                **where,
                log_probs=log_probs,
                old_log_probs=micro.old_log_probs,
                advantages=micro.advantages,
                prob_ratio=terms.tokens.ratio.detach(),
                elementwise_loss=terms.tokens.values.detach(),
                effective_valid=batch.response_mask,
                loss=metrics["loss"],
            )

    def weights(self, version: int, sent: Sequence[Fingerprint], held: Sequence[Sequence[Fingerprint]]) -> None:
        """What was sent as a version, and what each replica holds after it."""
        if sent:
            self.recorder.record("weights", step=version, micro=0, **snapshot_fields("sent", sent))
        for replica, tensors in enumerate(held):
            fields = snapshot_fields("held", tensors, replica=replica)
            self.recorder.record("weights", step=version, micro=replica + 1, **fields)

    def rollout_routing(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """The experts that the engine chose, where the model has any."""
        known = [item.routing for item in trajectories if item.routing is not None]
        if len(known) == len(trajectories) and known and self.recorder.wants("rollout_routing", step):
            experts, weights = (padded_routes([item[part] for item in known]) for part in (0, 1))
            where = _place(step, trajectories)
            self.recorder.record("rollout_routing", **where, experts=experts, expert_weights=weights)

    def routing(self, place: LoopPlace, batch: TrajectoryBatch, routes: Routes) -> None:
        """The experts that a forward pass chose for the tokens of each row."""
        found = routes.joined()
        if found is None:
            return
        attended = batch.attention_mask.cpu().numpy() != 0
        experts, weights = (
            padded_routes([row[seen] for row, seen in zip(part, attended, strict=True)]) for part in found
        )
        self.recorder.record("routing", **_where(place, batch), experts=experts, expert_weights=weights)

    def gradients(self, place: LoopPlace, model: Any) -> None:
        self.recorder.record_gradients(place.step, model, epoch=place.epoch, mini_batch=place.mini_batch)

    def parameters(self, place: LoopPlace, model: Any) -> None:
        self.recorder.record_parameters(place.step, model, epoch=place.epoch, mini_batch=place.mini_batch)

    def end_step(self, step: int) -> None:
        self.recorder.end_step(step)

    def close(self) -> None:
        self.recorder.close()


def columns(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Trajectories as the columns of their record; unknown values are omitted."""
    fields: dict[str, Any] = {
        "tokens": Ragged.from_rows([item.tokens for item in trajectories], np.int64),
        "loss_mask": Ragged.from_rows([item.loss_mask for item in trajectories], np.int64),
        "reward": np.asarray([item.reward for item in trajectories], dtype=np.float32),
        "is_val": np.asarray([item.is_val for item in trajectories]),
        "extra_fields": [item.extra_fields for item in trajectories],
    }
    logprobs = [item.logprobs for item in trajectories if item.logprobs is not None]
    versions = [item.policy_versions for item in trajectories if item.policy_versions is not None]
    if len(logprobs) == len(trajectories):
        fields["logprobs"] = Ragged.from_rows(logprobs, np.float32)
    if len(versions) == len(trajectories):
        fields["policy_versions"] = Ragged.from_rows(versions, np.int64)
    return fields


def _place(step: int, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What says which samples a record is about; a step's samples come from the weights of its number.

    Trajectories have their prompts in them; other kinds are given the hashes of them beside this.
    """
    return {
        "step": step,
        "policy_version": step,
        "samples": [item.sample for item in trajectories],
    }


def _where(place: LoopPlace, batch: TrajectoryBatch) -> dict[str, Any]:
    """What all records of a micro-batch share."""
    return {
        "step": place.step,
        "epoch": place.epoch,
        "mini_batch": place.mini_batch,
        "micro": place.micro,
        "samples": batch.samples,
        "prompt_hashes": batch.prompt_hashes,
        "policy_version": place.step,
    }
