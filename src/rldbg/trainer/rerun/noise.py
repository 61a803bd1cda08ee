"""How large rounding is in one recorded step: the step executed again in ways that must not matter.

Every variation is a recording of its own in a folder next to the run's (`RUN.noise/`), where `rldbg compare` finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rldbg.analysis import noise_folder
from rldbg.core import Identity, IncompleteDataError
from rldbg.recording import Record, Recorder, Recording
from rldbg.trainer.recipe import recipe_from_data
from rldbg.trainer.rerun.capsule_reader import Capsule, RankCapsule
from rldbg.trainer.rerun.execution import StepExecution
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import Shard, StepBatch
from rldbg.trainer.steps import MicroBatch, micro_batch_metrics

_PADDING_COLUMNS = 3


@dataclass(frozen=True, slots=True)
class Variation:
    """A way to execute a step that changes nothing but roundings."""

    name: str
    micro_batch_size: int | None = None
    threads: int | None = None
    reversed: bool = False
    padding: int = 0
    in_double: bool = False


def variations(recipe: Recipe) -> tuple[Variation, ...]:
    """Every variation of a recipe's own settings."""
    size = recipe.policy.micro_batch_size
    return (
        Variation("micro-batches-of-one", micro_batch_size=1),
        Variation("micro-batches-twice-as-large", micro_batch_size=2 * size),
        Variation("micro-batches-in-reverse", reversed=True),
        Variation("more-padding", padding=_PADDING_COLUMNS),
        Variation("other-threads", threads=2 if recipe.threads == 1 else 1),
        Variation("gradients-added-in-double", in_double=True),
    )


def measure_noise(recording: Recording, step: int) -> list[Path]:
    """Executes a step in every variation; the folders of their recordings. Raises when the step has no capsule."""
    if step not in recording.steps("capsule"):
        raise IncompleteDataError(
            f"step {step} of {recording.title} has no capsule, so it cannot be executed again",
            "record one: debug.capsule=true",
        )
    made = []
    capsule = Capsule(recording, step)
    recipe = recipe_from_data(capsule.recipe, source=f"capsule of step {step}")
    for variation in variations(recipe):
        folder = noise_folder(recording) / f"step-{step}-{variation.name}"
        if not folder.exists():
            _VariedExecution(Capsule(recording, step), recipe, variation, folder).execute()
        made.append(folder)
    return made


class _VariedExecution(StepExecution):
    """Records what it computes instead of comparing it."""

    def __init__(self, capsule: Capsule, recipe: Recipe, variation: Variation, folder: Path) -> None:
        policy, threads = recipe.policy, variation.threads or recipe.threads
        size = variation.micro_batch_size or policy.micro_batch_size
        varied = replace(recipe, threads=threads, policy=replace(policy, micro_batch_size=size))
        super().__init__(capsule, varied, rank=None)
        self._variation = variation
        self._updates = 0
        self._recorders = {
            rank: Recorder(folder, identity=Identity(rank=rank, coordinates={"dp": rank}), parameter_patterns=[".*"])
            for rank in self.ranks
        }

    def execute(self) -> list[Any]:
        stages = super().execute()
        for recorder in self._recorders.values():
            recorder.end_step(self._capsule.step)
            recorder.close()
        return stages

    def _compare(self, stage: str, name: str, ours: Any, recorded: Any, places: Sequence[str] = ()) -> None:
        """Nothing is judged here."""

    def _local_gradient(
        self, model: Any, rank: RankCapsule, shards: Sequence[Shard], place: tuple[int, int]
    ) -> dict[str, Any]:
        shard, recorder = shards[place[1]], self._recorders[rank.rank]
        model.zero_grad(set_to_none=True)
        sums: dict[str, Any] = {}
        for number, micro in enumerate(self._micro_batches(shard.batch, rank.results.get(place))):
            result, terms = self._train(model, micro, shard)
            where: dict[str, Any] = {"step": self._capsule.step, "epoch": place[0], "mini_batch": place[1]}
            where |= {"micro": number, "samples": micro.batch.samples}
            metrics = micro_batch_metrics(result, terms, micro)
            recorder.record(
                "forward_data",
                **where,
                log_probs=result.log_probs.detach(),
                entropy=result.entropy.detach(),
                response_mask=micro.batch.response_mask,
            )
            info = {"aggregation": self._recipe.algorithm.aggregation, "denominator": shard.denominator}
            names = {"loss": "loss", "pg_loss": "pg_loss", "entropy_loss": "entropy", "kl_loss": "kl_loss"}
            losses: dict[str, Any] = {name: metrics[metric] for name, metric in names.items()}
            recorder.record("loss", **where, **losses, extra_info=info)
            if self._variation.in_double:
                for name, parameter in model.named_parameters():
                    if parameter.grad is not None:
                        sums[name] = parameter.grad.double() + sums.get(name, 0.0)
                model.zero_grad(set_to_none=True)
        if sums:
            return {name: value.float() for name, value in sums.items()}
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    def _set_gradient(self, model: Any, gradient: Any) -> None:
        super()._set_gradient(model, gradient)
        epoch, mini_batch = divmod(self._updates, len(self._ranks[0].shards))
        self._updates += 1
        for recorder in self._recorders.values():
            recorder.record_gradients(self._capsule.step, model, epoch=epoch, mini_batch=mini_batch)

    def _compare_parameters(self, model: Any, place: tuple[int, int]) -> None:
        for recorder in self._recorders.values():
            recorder.record_parameters(self._capsule.step, model, epoch=place[0], mini_batch=place[1])

    def _micro_batches(self, batch: StepBatch, recorded: Record | None) -> list[MicroBatch]:
        micros = [_padded(micro, self._variation.padding) for micro in super()._micro_batches(batch, recorded)]
        return micros[::-1] if self._variation.reversed else micros


def _padded(micro: MicroBatch, columns: int) -> MicroBatch:
    """The micro-batch with more padding before the prompts, which nothing attends to."""
    if not columns:
        return micro
    import torch

    batch = micro.batch

    def wider(values: Any, fill: int) -> Any:
        return torch.cat([torch.full((len(values), columns), fill, dtype=values.dtype), values], dim=1)

    return replace(
        micro,
        batch=replace(
            batch,
            input_ids=wider(batch.input_ids, 0),
            attention_mask=wider(batch.attention_mask, 0),
            position_ids=wider(batch.position_ids, 0),
        ),
    )
