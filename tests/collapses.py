"""Ways in which a training collapses, planted into the embedded trainer from a step on; for `rldbg watch`.

Each replaces one function of the trainer at its real place and lets the steps before pass. The rules were made with
`COLLAPSES` at hand; `UNSEEN` were written afterwards, and no rule was changed for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rldbg.trainer.zoo.bug import replaced

_RATE = "rldbg.trainer.policy.learning_rate"
_MICRO = "rldbg.trainer.policy.train_micro_batch"
_APPLY = "rldbg.trainer.policy.apply_gradients"
_LOAD = "rldbg.trainer.inference_server.InferenceServer.load_weights"
_GENERATE = "rldbg.inference.batch_sampler.Sampler.generate"
_PREPARE = "rldbg.trainer.learner.prepare"
_ROLLOUT = "rldbg.trainer.rollout.RolloutWorker.run"


class Clock:
    """Which step it is, and how many steps the fault is old: below 0 before it."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.step = -1

    @property
    def age(self) -> int:
        return self.step - self.begin


def _learning_rate_too_high(clock: Clock, original: Any, *args: Any) -> Any:
    return original(*args) * (30 if clock.age >= 0 else 1)


def _gradient_sign_flipped(clock: Clock, original: Any, *args: Any, **options: Any) -> Any:
    return original(*args, **options | ({"loss_scale": -1.0} if clock.age >= 0 else {}))


def _gradient_not_finite(clock: Clock, original: Any, model: Any, *args: Any, **options: Any) -> Any:
    if clock.age == 0:
        next(iter(model.parameters())).grad[0, 0] = float("nan")
    return original(model, *args, **options)


def _entropy_punished(clock: Clock, original: Any, model: Any, micro: Any, algorithm: Any, **options: Any) -> Any:
    changed = replace(algorithm, entropy_coeff=-0.5) if clock.age >= 0 else algorithm
    return original(model, micro, changed, **options)


def _entropy_rewarded(clock: Clock, original: Any, model: Any, micro: Any, algorithm: Any, **options: Any) -> Any:
    changed = replace(algorithm, entropy_coeff=1.0) if clock.age >= 0 else algorithm
    return original(model, micro, changed, **options)


def _loss_not_averaged(clock: Clock, original: Any, model: Any, optimizer: Any, **options: Any) -> Any:
    """The sum over tokens instead of the mean, without clipping."""
    if clock.age < 0:
        return original(model, optimizer, **options)
    for parameter in model.parameters():
        parameter.grad *= 1000
    return original(model, optimizer, rate=options["rate"] * 10, max_grad_norm=0.0)


def _optimizer_state_lost(clock: Clock, original: Any, model: Any, optimizer: Any, **options: Any) -> Any:
    """Second moments shrink from step to step, so each step is larger than the one before."""
    if clock.age >= 0:
        for state in optimizer.state.values():
            state["exp_avg_sq"].mul_(0.3)
    return original(model, optimizer, **options)


def _weights_corrupted(clock: Clock, original: Any, server: Any, weights: Any, version: int) -> Any:
    """Each synchronisation is a little more wrong than the one before."""
    import torch

    if clock.age >= 0:
        generator = torch.Generator().manual_seed(version)
        weights = {
            name: tensor + 0.02 * (clock.age + 1) * tensor.std() * torch.randn(tensor.shape, generator=generator)
            if tensor.is_floating_point() and tensor.numel() > 1
            else tensor
            for name, tensor in weights.items()
        }
    return original(server, weights, version)


def _weights_not_synchronised(clock: Clock, original: Any, server: Any, weights: Any, version: int) -> Any:
    return None if clock.age >= 0 else original(server, weights, version)


def _temperature_drifts(clock: Clock, original: Any, sampler: Any, requests: Any, **options: Any) -> Any:
    if clock.age >= 0:
        options["temperature"] *= 1 + 0.15 * (clock.age + 1)
    return original(sampler, requests, **options)


def _rewarded_for_length(clock: Clock, original: Any, trajectories: Any, *args: Any, **options: Any) -> Any:
    """A reward model that likes long answers; the metrics still show the true reward."""
    if clock.age >= 0:
        trajectories = [replace(item, reward=0.5 * float(item.response_length)) for item in trajectories]
    return original(trajectories, *args, **options)


def _advantages_all_positive(clock: Clock, original: Any, *args: Any, **options: Any) -> Any:
    """Every sample is reinforced, right or wrong."""
    batch = original(*args, **options)
    return replace(batch, advantages=abs(batch.advantages) + 1) if clock.age >= 0 else batch


def _weights_decayed(clock: Clock, original: Any, model: Any, optimizer: Any, **options: Any) -> Any:
    """A weight decay that is far too strong."""
    import torch

    norm = original(model, optimizer, **options)
    if clock.age >= 0:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.985)
    return norm


def _learning_rate_grows(clock: Clock, original: Any, *args: Any) -> Any:
    return original(*args) * (1.25 ** (clock.age + 1) if clock.age >= 0 else 1)


def _advantages_turn(clock: Clock, original: Any, *args: Any, **options: Any) -> Any:
    """The sign of the advantages changes over ten steps."""
    batch = original(*args, **options)
    scale = max(-1.0, 1 - 0.2 * (clock.age + 1)) if clock.age >= 0 else 1.0
    return replace(batch, advantages=batch.advantages * scale)


def _advantages_of_neighbours(clock: Clock, original: Any, *args: Any, **options: Any) -> Any:
    import numpy as np

    batch = original(*args, **options)
    return replace(batch, advantages=np.roll(batch.advantages, 1)) if clock.age >= 0 else batch


def _weights_quantised(clock: Clock, original: Any, server: Any, weights: Any, version: int) -> Any:
    """The engine's matrices have fewer and fewer levels."""
    import torch

    if clock.age < 0:
        return original(server, weights, version)
    levels = max(2.0, 40.0 - 3 * clock.age)

    def coarse(tensor: Any) -> Any:
        if not tensor.is_floating_point() or tensor.ndim < 2:
            return tensor
        largest = tensor.abs().max().clamp(min=1e-9)
        return torch.round(tensor / largest * levels) / levels * largest

    return original(server, {name: coarse(tensor) for name, tensor in weights.items()}, version)


def _rewards_turned(clock: Clock, original: Any, trajectories: Any, *args: Any, **options: Any) -> Any:
    """A growing share of the rewards is the opposite of the true one; the metrics still show the true reward."""
    import random

    drawn = random.Random(clock.step)
    share = min(1.0, 0.15 * (clock.age + 1))
    if clock.age >= 0:
        trajectories = [
            replace(item, reward=1.0 - float(item.reward)) if drawn.random() < share else item for item in trajectories
        ]
    return original(trajectories, *args, **options)


COLLAPSES: dict[str, tuple[str, Callable[..., Any]]] = {
    "learning-rate-too-high": (_RATE, _learning_rate_too_high),
    "gradient-sign-flipped": (_MICRO, _gradient_sign_flipped),
    "gradient-not-finite": (_APPLY, _gradient_not_finite),
    "entropy-punished": (_MICRO, _entropy_punished),
    "entropy-rewarded": (_MICRO, _entropy_rewarded),
    "loss-not-averaged": (_APPLY, _loss_not_averaged),
    "optimizer-state-lost": (_APPLY, _optimizer_state_lost),
    "weights-corrupted": (_LOAD, _weights_corrupted),
    "weights-not-synchronised": (_LOAD, _weights_not_synchronised),
    "temperature-drifts": (_GENERATE, _temperature_drifts),
    "rewarded-for-length": (_PREPARE, _rewarded_for_length),
    "advantages-all-positive": (_PREPARE, _advantages_all_positive),
}


UNSEEN: dict[str, tuple[str, Callable[..., Any]]] = {
    "weights-decayed": (_APPLY, _weights_decayed),
    "learning-rate-grows": (_RATE, _learning_rate_grows),
    "advantages-turn": (_PREPARE, _advantages_turn),
    "advantages-of-neighbours": (_PREPARE, _advantages_of_neighbours),
    "weights-quantised": (_LOAD, _weights_quantised),
    "rewards-turned": (_PREPARE, _rewards_turned),
}


@contextmanager
def planted(name: str, begin: int) -> Iterator[None]:
    """The collapse `name` from step `begin` on; none without a name."""
    if not name:
        yield
        return
    clock = Clock(begin)
    at, spoiled = (COLLAPSES | UNSEEN)[name]

    def counted(original: Any, worker: Any, step: int, *args: Any) -> Any:
        clock.step = step
        return original(worker, step, *args)

    with replaced(_ROLLOUT, counted), replaced(at, lambda *args, **options: spoiled(clock, *args, **options)):
        yield
