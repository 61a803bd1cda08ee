"""What can be executed again of a step without a capsule: advantages from rewards, the loss from recorded log probs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.algorithms import aggregate, combine_losses, loss_denominator, policy_loss
from rldbg.core import SampleId
from rldbg.recording import Record, Recording
from rldbg.replay import trajectories_of
from rldbg.trainer.rerun.stages import RerunStage, StageMeasured, StageTolerance, StageVerdict, judge, measure
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import prepare

_TOLERANCE = StageTolerance(1e-6, 1e-5)
_NO_CAPSULE = "needs a capsule: record with debug.capsule=true"


@dataclass(frozen=True, slots=True)
class _Advantages:
    """One value per sample, and whether the sample is trained on."""

    values: dict[SampleId, float]
    trained: dict[SampleId, bool]


class PartialExecution:
    """The stages that need no parameters."""

    def __init__(self, recording: Recording, step: int, recipe: Recipe, *, rank: int | None) -> None:
        self._recording = recording
        self._step = step
        self._recipe = recipe
        self._rank = rank
        self.losses: list[float] = []

    @property
    def ranks(self) -> tuple[int, ...]:
        found = self._recording.ranks("loss", self._step) or self._recording.ranks(step=self._step)
        return found if self._rank is None else (self._rank,)

    def execute(self) -> list[RerunStage]:
        advantages = self._advantages()
        return [
            self._advantage_stage(advantages),
            RerunStage("forward", StageVerdict.NOT_EXECUTED, _NO_CAPSULE),
            self._loss_stage(advantages),
            RerunStage("gradient", StageVerdict.NOT_EXECUTED, _NO_CAPSULE),
            RerunStage("parameter", StageVerdict.NOT_EXECUTED, _NO_CAPSULE),
        ]

    def _advantages(self) -> _Advantages | None:
        for kind in ("trajectory", "prepared_trajectories"):
            for record in self._recording.records(kind, self._step):
                trajectories = list(trajectories_of(record))
                batch = prepare(trajectories, self._recipe.algorithm, max_length=self._recipe.max_response_length)
                samples = [item.sample for item in trajectories]
                return _Advantages(
                    dict(zip(samples, batch.advantages.tolist(), strict=True)),
                    dict(zip(samples, batch.trained.tolist(), strict=True)),
                )
        return None

    def _advantage_stage(self, advantages: _Advantages | None) -> RerunStage:
        if advantages is None:
            return RerunStage("advantage", StageVerdict.NOT_EXECUTED, "no trajectory of this step is recorded")
        measured = []
        for record, recorded in self._recorded_advantages():
            ours = [advantages.values.get(sample, float("nan")) for sample in record.samples]
            places = [str(sample) for sample in record.samples]
            measured.append(measure(str(record.key), np.asarray(ours, np.float32), recorded, _TOLERANCE, places))
        note = "" if measured else "computed from the rewards; no advantages are recorded"
        return judge("advantage", measured, _TOLERANCE, note)

    def _recorded_advantages(self) -> Iterator[tuple[Record, np.ndarray]]:
        """Recorded advantages, one per sample: that of its first trained token."""
        for record in self._recording.records("is_loss_debug", self._step):
            mask = record.array("effective_valid") != 0
            first = mask.argmax(axis=1)
            yield record, record.array("advantages")[np.arange(len(first)), first]
        for record in self._recording.records("prepared_trajectories", self._step):
            if "advantages" in record.fields:
                masks = record.rows("loss_mask")
                rows = zip(record.rows("advantages"), masks, strict=True)
                yield record, np.asarray([row[int(np.argmax(mask != 0))] for row, mask in rows], dtype=np.float32)

    def _loss_stage(self, advantages: _Advantages | None) -> RerunStage:
        losses = {record.key[1:]: record for record in self._recording.records("loss", self._step)}
        forwards = {record.key[1:]: record for record in self._recording.records("forward_data", self._step)}
        old = self._old_log_probs()
        missing = [
            name
            for name, there in (
                ("trajectory", advantages),
                ("old_log_probs", old),
                ("forward_data", forwards),
                ("loss", losses),
            )
            if not there
        ]
        if missing or advantages is None:
            return RerunStage("loss", StageVerdict.NOT_EXECUTED, f"not recorded: {', '.join(missing)}")
        denominators = self._denominators(list(forwards.values()))
        measured: list[StageMeasured] = []
        for place in sorted(losses.keys() & forwards.keys()):
            record = losses[place]
            if self._rank in (None, record.key.rank):
                group = (record.key.epoch, record.key.mini_batch)
                loss = self._loss(forwards[place], old, advantages, denominators[group])
                self.losses.append(float(loss))
                recorded = np.asarray(record.fields["loss"], dtype=np.float32)
                measured.append(measure(str(record.key), np.asarray(loss, np.float32), recorded, _TOLERANCE))
        return judge("loss", measured, _TOLERANCE, "from recorded log probs")

    def _old_log_probs(self) -> dict[SampleId, np.ndarray]:
        return {
            sample: row
            for record in self._recording.records("old_log_probs", self._step)
            for sample, row in zip(record.samples, record.rows("old_log_probs"), strict=True)
        }

    def _denominators(self, forwards: list[Record]) -> dict[tuple[int, int], float]:
        """The denominator of each mini-batch: what all its ranks and micro-batches add up to."""
        totals: dict[tuple[int, int], float] = {}
        how = self._recipe.algorithm.aggregation
        for record in forwards:
            group = (record.key.epoch, record.key.mini_batch)
            totals[group] = totals.get(group, 0.0) + loss_denominator(record.array("response_mask"), how)
        return {group: 1.0 if how == "sum" else max(total, 1.0) for group, total in totals.items()}

    def _loss(
        self, forward: Record, old: dict[SampleId, np.ndarray], advantages: _Advantages, denominator: float
    ) -> Any:
        algorithm = self._recipe.algorithm
        log_probs, mask = forward.array("log_probs"), forward.array("response_mask")
        width = log_probs.shape[1]
        old_rows = np.stack([_fitted(old[sample], width) for sample in forward.samples])
        values = np.asarray([advantages.values[sample] for sample in forward.samples], dtype=np.float32)
        tokens = policy_loss(
            algorithm.loss,
            log_probs,
            old_rows,
            np.repeat(values[:, None], width, axis=1),
            lowest_ratio=1 - algorithm.clip_low,
            highest_ratio=1 + algorithm.clip_high,
        )
        policy = aggregate(tokens.values, mask, algorithm.aggregation, denominator)
        entropy = aggregate(forward.array("entropy"), mask, algorithm.aggregation, denominator)
        return combine_losses(policy, entropy, 0.0, entropy_coeff=algorithm.entropy_coeff)


def _fitted(row: np.ndarray, width: int) -> np.ndarray:
    """A row cut or padded to a micro-batch's width."""
    return np.pad(row[:width], (0, max(width - len(row), 0)))
