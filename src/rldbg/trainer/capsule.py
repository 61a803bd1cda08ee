"""Capsules: all that one policy step needs to be executed again, and its results.

Each rank records two additional kinds:

    capsule         before the step: the rank's samples as they were split, random state, recipe (with thread counts),
                    the model's configuration, code version; rank 0 also has the parameters and the optimizer's
                    moments, which all ranks share
    capsule_result  after each optimizer step (epoch, mini-batch): log probs and losses of the micro-batches and the
                    local gradient; rank 0 also has the reduced gradient and the parameters afterwards

Tensors are called `param:NAME`, `exp_avg:NAME`, `exp_avg_sq:NAME`, `local:NAME`, `reduced:NAME`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rldbg.core import Identity, SampleId, redact
from rldbg.recording import Ragged, Recorder
from rldbg.replay import prompt_hashes
from rldbg.trainer.determinism import random_state
from rldbg.trainer.observer import LoopPlace, RecordingPlan, columns
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import Shard

if TYPE_CHECKING:
    from rldbg.trainer.steps import Forward, LossTerms, MicroBatch

CAPSULE_KINDS = ("capsule", "capsule_result")
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(slots=True)
class _Result:
    """The results of an optimizer step so far."""

    log_probs: list[np.ndarray] = field(default_factory=list)
    entropy: list[np.ndarray] = field(default_factory=list)
    reference: list[np.ndarray] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    samples: list[SampleId] = field(default_factory=list)
    tensors: dict[str, Any] = field(default_factory=dict)


class CapsuleWriter:
    """Writes the capsules of one rank. At steps without one, its methods do nothing."""

    def __init__(self, plan: RecordingPlan, identity: Identity, recipe: Recipe) -> None:
        self._settings = plan.capsules
        self._recorder = Recorder.from_settings(plan.capsules, identity)
        self._code = dict(plan.code)
        self._rank = identity.rank
        self._recipe = recipe
        self._result = _Result()

    def _due(self, step: int) -> bool:
        # Depends on the settings only, so it is the same on all ranks: gathering shards is a collective.
        return self._settings.enabled and step % self._settings.every_n_steps == 0

    def before(self, step: int, model: Any, optimizer: Any, shards: Sequence[Shard], *, pad_id: int) -> None:
        """The state a step starts from."""
        if not self._due(step):
            return
        state = _named("param", model.named_parameters())
        for moment in MOMENTS:
            state |= _named(moment, _moments(model, optimizer, moment))
        trajectories = [item for shard in shards for item in shard.batch.trajectories]
        self._recorder.record(
            "capsule",
            step=step,
            samples=[item.sample for item in trajectories],
            prompt_hashes=prompt_hashes(trajectories),
            policy_version=step,
            recipe=redact(asdict(self._recipe)),
            model_config=model.config.to_dict(),
            pad_id=pad_id,
            code=self._code,
            optimizer_steps=_optimizer_steps(optimizer),
            **columns(trajectories),
            **_shard_columns(shards),
            **{f"random_state:{name}": tensor for name, tensor in random_state().items()},
            **(state if self._rank == 0 else {}),
        )

    def micro_batch(self, place: LoopPlace, micro: MicroBatch, result: Forward, terms: LossTerms) -> None:
        if not self._due(place.step):
            return
        lengths = micro.batch.response_lengths.tolist()
        self._result.log_probs += _rows(result.log_probs, lengths)
        self._result.entropy += _rows(result.entropy, lengths)
        if micro.reference_log_probs is not None:
            self._result.reference += _rows(micro.reference_log_probs, lengths)
        self._result.losses.append(float(terms.loss.detach()))
        self._result.samples += micro.batch.samples

    def local_gradient(self, place: LoopPlace, model: Any) -> None:
        """This rank's own gradient; under FSDP there is none, it is reduced while it is computed."""
        if self._due(place.step) and not self._recipe.policy.fsdp:
            self._result.tensors |= _named("local", _gradients(model), copy=True)

    def reduced_gradient(self, place: LoopPlace, model: Any) -> None:
        if self._due(place.step):
            reduced = _named("reduced", _gradients(model), copy=True)
            self._result.tensors |= reduced if self._rank == 0 else {}

    def after(self, place: LoopPlace, model: Any) -> None:
        """The optimizer step is done: its result is recorded."""
        if not self._due(place.step):
            return
        parameters = _named("param", model.named_parameters())
        result, self._result = self._result, _Result()
        if result.reference:
            result.tensors["reference_log_probs"] = Ragged.from_rows(result.reference, np.float32)
        self._recorder.record(
            "capsule_result",
            step=place.step,
            epoch=place.epoch,
            mini_batch=place.mini_batch,
            samples=result.samples,
            policy_version=place.step,
            log_probs=Ragged.from_rows(result.log_probs, np.float32),
            entropy=Ragged.from_rows(result.entropy, np.float32),
            losses=result.losses,
            **result.tensors,
            **(parameters if self._rank == 0 else {}),
        )

    def end_step(self, step: int) -> None:
        self._recorder.end_step(step)

    def close(self) -> None:
        self._recorder.close()


def _rows(values_br: Any, lengths: Sequence[int]) -> list[np.ndarray]:
    """[b, r] as one array per sample, without padding."""
    return [row[:length].numpy() for row, length in zip(values_br.detach().cpu(), lengths, strict=True)]


def _named(prefix: str, tensors: Any, *, copy: bool = False) -> dict[str, Any]:
    """`prefix:NAME` -> whole tensor; gathering a shard is a collective."""
    whole = {f"{prefix}:{name}": _whole(tensor.detach()) for name, tensor in tensors}
    return {name: tensor.clone() for name, tensor in whole.items()} if copy else whole


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _gradients(model: Any) -> Any:
    return ((name, parameter.grad) for name, parameter in model.named_parameters() if parameter.grad is not None)


def _moments(model: Any, optimizer: Any, moment: str) -> Any:
    return (
        (name, optimizer.state[parameter][moment])
        for name, parameter in model.named_parameters()
        if moment in optimizer.state.get(parameter, {})
    )


def _optimizer_steps(optimizer: Any) -> int:
    """How many steps the optimizer has taken; Adam's bias correction needs it."""
    counts = {int(state["step"]) for state in optimizer.state.values() if "step" in state}
    return counts.pop() if counts else 0


def _shard_columns(shards: Sequence[Shard]) -> dict[str, Any]:
    """How the samples were split, and what was computed from them before the step."""
    batches = [shard.batch for shard in shards]
    fields: dict[str, Any] = {
        "shard_rows": [len(batch) for batch in batches],
        "denominators": [shard.denominator for shard in shards],
        "advantages": np.concatenate([batch.advantages for batch in batches]),
        "trained": np.concatenate([batch.trained for batch in batches]),
    }
    rows = [row for batch in batches for row in batch.old_log_probs]
    return fields | ({"old_log_probs": Ragged.from_rows(rows, np.float32)} if rows else {})
