"""A recorded policy step executed again, in this process, on CPU: every rank in turn, or one of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.core import IncompleteDataError
from rldbg.recording import Record
from rldbg.replay import padded_rows
from rldbg.trainer.determinism import fix_threads, restore_random_state
from rldbg.trainer.distributed import add_in_order
from rldbg.trainer.rerun.capsule_model import capsule_model
from rldbg.trainer.rerun.capsule_reader import Capsule, RankCapsule, tensors_of
from rldbg.trainer.rerun.stages import RerunStage, StageMeasured, StageTolerance, judge, measure
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import Shard, StepBatch, micro_batches, mini_batch_denominator, prepare
from rldbg.trainer.steps import (
    Forward,
    LossTerms,
    MicroBatch,
    apply_gradients,
    learning_rate,
    make_optimizer,
    train_micro_batch,
)

# Derived in docs/rerun.md: a few units in the last place, summed over a sequence or a batch.
_TOLERANCES = {"float32": StageTolerance(1e-6, 1e-5), "bfloat16": StageTolerance(1e-2, 2e-2)}


class StepExecution:
    """One step of one capsule. `execute` is what `--pdb` stops in."""

    def __init__(self, capsule: Capsule, recipe: Recipe, *, rank: int | None) -> None:
        self._capsule = capsule
        self._recipe = recipe
        self._only = rank
        everyone = [capsule.rank(number) for number in capsule.ranks]
        self._ranks = [item for item in everyone if rank in (None, item.rank)] or [capsule.rank(rank or 0)]
        self._everyone = everyone
        self._tolerance = _TOLERANCES[recipe.model.dtype]
        self._measured: defaultdict[str, list[StageMeasured]] = defaultdict(list)
        self.losses: list[float] = []

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(item.rank for item in self._ranks)

    def execute(self) -> list[RerunStage]:
        """Runs the step and returns the verdict on each stage."""
        recipe = self._recipe
        fix_threads(recipe.threads, deterministic=recipe.deterministic)
        model = capsule_model(self._capsule, recipe)
        optimizer = self._optimizer(model)
        shards = self._advantages()
        rate = learning_rate(recipe.optimizer, self._capsule.step, recipe.steps)
        for epoch in range(recipe.policy.epochs):
            for mini_batch in range(len(self._ranks[0].shards)):
                place = (epoch, mini_batch)
                locals_ = [self._local_gradient(model, item, shards[item.rank], place) for item in self._ranks]
                self._set_gradient(model, self._reduced_gradient(locals_, place))
                apply_gradients(model, optimizer, rate=rate, max_grad_norm=recipe.optimizer.max_grad_norm)
                self._compare_parameters(model, place)
        return [self._verdict(stage) for stage in ("advantage", "forward", "loss", "gradient", "parameter")]

    def _verdict(self, stage: str) -> RerunStage:
        tolerance = self._parameter_tolerance() if stage == "parameter" else self._tolerance
        return judge(stage, self._measured[stage], tolerance)

    def _parameter_tolerance(self) -> StageTolerance:
        """Wider where gradients differ by rounding: Adam divides by their size, so near zero that is a whole step."""
        gradients = self._measured["gradient"]
        if all(item.exact for item in gradients) or not all(item.within for item in gradients):
            return self._tolerance
        rate = learning_rate(self._recipe.optimizer, self._capsule.step, self._recipe.steps)
        steps = self._recipe.policy.epochs * len(self._ranks[0].shards)
        return StageTolerance(self._tolerance.absolute + 2 * rate * steps, self._tolerance.relative)

    def _optimizer(self, model: Any) -> Any:
        import torch

        optimizer = make_optimizer(model.parameters(), self._recipe.optimizer)
        moments = self._capsule.moments()
        for name, parameter in model.named_parameters():
            if self._capsule.optimizer_steps and name in moments["exp_avg"]:
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(self._capsule.optimizer_steps)),
                    **{moment: tensors[name] for moment, tensors in moments.items()},
                }
        return optimizer

    def _advantages(self) -> dict[int, list[Shard]]:
        """Every rank's shards with advantages computed again from the rewards of all ranks."""
        trajectories = [item for rank in self._everyone for item in rank.trajectories]
        batch = prepare(trajectories, self._recipe.algorithm, max_length=self._recipe.max_response_length)
        shards: dict[int, list[Shard]] = {}
        start = 0
        for rank in self._everyone:
            parts = []
            for shard in rank.shards:
                rows = slice(start, start + len(shard.batch))
                start = rows.stop
                fresh = replace(shard.batch, advantages=batch.advantages[rows], trained=batch.trained[rows])
                parts.append(replace(shard, batch=fresh))
            shards[rank.rank] = parts
            recorded = np.concatenate([shard.batch.advantages for shard in rank.shards])
            fresh_values = np.concatenate([shard.batch.advantages for shard in parts])
            places = [str(item.sample) for item in rank.trajectories]
            self._compare("advantage", f"rank {rank.rank}", fresh_values, recorded, places)
        return self._with_denominators(shards)

    def _with_denominators(self, shards: dict[int, list[Shard]]) -> dict[int, list[Shard]]:
        """The denominator of each mini-batch, from all its ranks."""
        complete = {rank: list(parts) for rank, parts in shards.items()}
        for number in range(len(self._everyone[0].shards)):
            batches = [parts[number].batch for parts in shards.values()]
            denominator = mini_batch_denominator(batches, self._recipe.algorithm.aggregation)
            for parts in complete.values():
                parts[number] = replace(parts[number], denominator=denominator)
        return complete

    def _train(self, model: Any, micro: MicroBatch, shard: Shard) -> tuple[Forward, LossTerms]:
        """One forward and backward pass with the recorded recipe."""
        temperature = self._recipe.inference.temperature
        return train_micro_batch(
            model, micro, self._recipe.algorithm, denominator=shard.denominator, temperature=temperature
        )

    def _local_gradient(
        self, model: Any, rank: RankCapsule, shards: Sequence[Shard], place: tuple[int, int]
    ) -> dict[str, Any]:
        """One rank's forward and backward passes over a mini-batch, compared with its record."""
        shard, recorded = shards[place[1]], rank.results.get(place)
        restore_random_state(self._capsule.random_state(rank.rank))
        model.zero_grad(set_to_none=True)
        log_probs: list[np.ndarray] = []
        losses = []
        for micro in self._micro_batches(shard.batch, recorded):
            result, terms = self._train(model, micro, shard)
            lengths = micro.batch.response_lengths.tolist()
            rows = result.log_probs.detach().numpy()
            log_probs += [row[:length] for row, length in zip(rows, lengths, strict=True)]
            losses.append(float(terms.loss.detach()))
        self.losses += losses
        gradient = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        if recorded is not None:
            self._compare_rank(rank, place, recorded, log_probs, losses, gradient)
        return gradient

    def _micro_batches(self, batch: StepBatch, recorded: Record | None) -> list[MicroBatch]:
        size = self._recipe.policy.micro_batch_size
        micros = list(micro_batches(batch, size=size, pad_id=self._capsule.pad_id))
        if not self._recipe.algorithm.kl_coeff or recorded is None:
            return micros
        if "reference_log_probs" not in recorded.fields:
            raise IncompleteDataError(
                "the capsule has no log probs of the reference model, which a KL term requires",
                "a coefficient can be changed only where the recorded run had a KL term",
            )
        rows = list(recorded.rows("reference_log_probs"))
        return [
            replace(micro, reference_log_probs=padded_rows(rows[start : start + size], micro.batch.response_width))
            for start, micro in zip(range(0, len(batch), size), micros, strict=True)
        ]

    def _compare_rank(
        self,
        rank: RankCapsule,
        place: tuple[int, int],
        recorded: Record,
        log_probs: Sequence[np.ndarray],
        losses: Sequence[float],
        gradient: Mapping[str, Any],
    ) -> None:
        where = _where(rank.rank, place, self._recipe)
        places = [
            f"{sample} token {token}"
            for sample, row in zip(recorded.samples, log_probs, strict=True)
            for token in range(len(row))
        ]
        theirs = recorded.array("log_probs")
        self._compare("forward", f"{where} log_probs", np.concatenate(log_probs), theirs, places)
        self._compare("loss", f"{where} loss", losses, recorded.fields["losses"])
        for name, tensor in tensors_of(recorded, "local"):
            self._compare("gradient", f"{where} {name}", gradient[name].float(), tensor.float())

    def _compare(self, stage: str, name: str, ours: Any, recorded: Any, places: Sequence[str] = ()) -> None:
        tolerance = self._parameter_tolerance() if stage == "parameter" else self._tolerance
        self._measured[stage].append(measure(name, ours, recorded, tolerance, places))

    def _reduced_gradient(self, parts: Sequence[Mapping[str, Any]], place: tuple[int, int]) -> dict[str, Any]:
        """The sum over ranks in rank order; of one rank alone, the recorded sum is taken."""
        recorded = dict(tensors_of(self._rank_0_result(place), "reduced"))
        if self._only is not None and len(self._everyone) > 1:
            return recorded
        summed = {name: add_in_order([part[name] for part in parts]) for name in parts[0]}
        for name, tensor in recorded.items():
            where = _where(None, place, self._recipe)
            self._compare("gradient", f"{where} {name}", summed[name].float(), tensor.float())
        return summed

    def _set_gradient(self, model: Any, gradient: Mapping[str, Any]) -> None:
        for name, parameter in model.named_parameters():
            parameter.grad = gradient[name].clone() if name in gradient else None

    def _compare_parameters(self, model: Any, place: tuple[int, int]) -> None:
        recorded = dict(tensors_of(self._rank_0_result(place), "param"))
        for name, parameter in model.named_parameters():
            where = _where(None, place, self._recipe)
            self._compare("parameter", f"{where} {name}", parameter.detach().float(), recorded[name].float())

    def _rank_0_result(self, place: tuple[int, int]) -> Record:
        result = self._everyone[0].results.get(place)
        if result is None:
            raise IncompleteDataError(
                f"the capsule of step {self._capsule.step} has no result of epoch {place[0]}, mini-batch {place[1]}",
                "the run was interrupted during this step; choose an earlier one",
            )
        return result


def _where(rank: int | None, place: tuple[int, int], recipe: Recipe) -> str:
    parts = [] if rank is None else [f"rank {rank}"]
    if recipe.policy.epochs > 1 or recipe.policy.mini_batches > 1:
        parts.append(f"epoch {place[0]} mini-batch {place[1]}")
    return " ".join(parts)
