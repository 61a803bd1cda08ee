"""Bugs after the loss: gradients, their reduction, the optimizer, replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug


@bug(targets.MICRO_BATCHES, stage="forward", cause="samples-dropped")
def last_micro_batch_dropped(original: Any, batch: Any, **options: Any) -> Iterator[Any]:
    """`drop_last` of a data loader: the last micro-batch of a shard is never trained on."""
    micros = list(original(batch, **options))
    yield from micros[:-1] if batch.old_log_probs else micros


@bug(targets.MICRO_BATCHES, stage="forward", cause="samples-repeated")
def first_micro_batch_twice(original: Any, batch: Any, **options: Any) -> Iterator[Any]:
    """The data iterator is restarted after its first element was read, so that one is trained on twice."""
    micros = list(original(batch, **options))
    yield from [micros[0], *micros] if batch.old_log_probs else micros


@bug(targets.TRAIN_MICRO, stage="gradient", cause="gradient-scaled")
def accumulation_divides_again(original: Any, *arguments: Any, **options: Any) -> Any:
    """The loss is already a mean over the mini-batch and is divided by the number of micro-batches once more."""
    return original(*arguments, **(options | {"loss_scale": 0.5}))


@bug(targets.SUM, stage="gradient", cause="gradient-scaled", needs=("ranks",))
def gradients_averaged(original: Any, model: Any, ranks: Any, **options: Any) -> None:
    """Gradients are averaged over ranks instead of summed."""
    original(model, ranks, **options)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= ranks.size


@bug(targets.SUM, stage="gradient", cause="gradient-not-reduced", needs=("ranks",))
def gradients_not_reduced(_original: Any, _model: Any, _ranks: Any, **_options: Any) -> None:
    """Ranks use their own gradients and diverge."""


@bug(targets.APPLY, stage="gradient", cause="gradient-carried-over")
def gradients_not_cleared(original: Any, model: Any, optimizer: Any, **options: Any) -> Any:
    """`zero_grad` is missing: each step adds to the gradients of all before it."""
    kept, optimizer.zero_grad = optimizer.zero_grad, lambda **_: None
    try:
        return original(model, optimizer, **options)
    finally:
        optimizer.zero_grad = kept


@bug(targets.APPLY, stage="parameter", cause="gradient-clip")
def gradient_clip_missing(original: Any, model: Any, optimizer: Any, *, rate: float, max_grad_norm: float) -> Any:
    """Gradients are not clipped."""
    return original(model, optimizer, rate=rate, max_grad_norm=0.0)


@bug(targets.APPLY, stage="parameter", cause="learning-rate")
def learning_rate_tenfold(original: Any, model: Any, optimizer: Any, *, rate: float, max_grad_norm: float) -> Any:
    """The learning rate is that of a different optimizer."""
    return original(model, optimizer, rate=rate * 10, max_grad_norm=max_grad_norm)


@bug(targets.OPTIMIZER, stage="parameter", cause="weight-decay")
def weight_decay_by_default(original: Any, parameters: Any, settings: Any) -> Any:
    """The optimizer's default weight decay is on, embeddings and norms included."""
    return original(parameters, replace(settings, weight_decay=0.1))


@bug(targets.ACCUMULATE, stage="parameter", cause="replica-drift", needs=("ranks",))
def one_replica_drifts(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """A bit of one rank's memory is wrong: one of its parameters is not the other ranks'."""
    import torch

    collected = original(worker, place, shard)
    if worker._rank == 1 and (place.epoch, place.mini_batch) == (0, 0):
        with torch.no_grad():
            next(worker._model.parameters())[3, 3] += 0.01
    return collected


@bug(targets.OPTIMIZER, stage="parameter", cause="parameters-frozen")
def part_of_the_model_frozen(original: Any, parameters: Any, settings: Any) -> Any:
    """The optimizer is given half of the parameters."""
    every = list(parameters)
    return original(every[: len(every) // 2], settings)


@bug(targets.APPLY, stage="parameter", cause="update-skipped")
def update_skipped(original: Any, model: Any, optimizer: Any, **options: Any) -> Any:
    """Every second optimizer step is skipped, as by a gradient scaler that saw an overflow."""
    count = getattr(optimizer, "calls", 0)
    optimizer.calls = count + 1
    if count % 2:
        optimizer.zero_grad(set_to_none=True)
        return 0.0
    return original(model, optimizer, **options)


@bug(targets.SUM, stage="gradient", cause="gradient-scaled", late=True, needs=("ranks",))
def gradients_doubled(original: Any, model: Any, ranks: Any, **options: Any) -> None:
    """Gradients are all-reduced twice, so they are summed twice."""
    original(model, ranks, **options)
    original(model, ranks, **options)


@bug(targets.SUM, stage="gradient", cause="precision", late=True, needs=("float32",))
def gradients_reduced_in_bfloat16(original: Any, model: Any, ranks: Any, **options: Any) -> None:
    """Gradients are rounded to bfloat16 for the reduction."""
    import torch

    original(model, ranks, **options)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(parameter.grad.to(torch.bfloat16).float())


@bug(targets.OPTIMIZER, stage="parameter", cause="optimizer-betas", late=True)
def optimizer_betas_of_the_library(original: Any, parameters: Any, settings: Any) -> Any:
    """beta2 is the library's default of 0.999."""
    return original(parameters, replace(settings, beta2=0.999))


@bug(targets.APPLY, stage="parameter", cause="learning-rate", late=True)
def learning_rate_warms_up_for_ever(original: Any, model: Any, optimizer: Any, *, rate: float, **options: Any) -> Any:
    """The schedule counts optimizer steps where it was given in steps: the rate is a fifth of what it should be."""
    return original(model, optimizer, rate=rate / 5, **options)


@bug(targets.APPLY, stage="parameter", cause="gradient-clip", late=True)
def gradient_clip_by_a_tenth(original: Any, model: Any, optimizer: Any, *, max_grad_norm: float, **options: Any) -> Any:
    """Gradients are clipped to a tenth of the norm."""
    return original(model, optimizer, max_grad_norm=max_grad_norm / 10, **options)


@bug(targets.APPLY, stage="parameter", cause="optimizer-kind", late=True)
def optimizer_is_sgd(original: Any, model: Any, optimizer: Any, *, rate: float, **options: Any) -> Any:
    """SGD instead of Adam."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad
    optimizer.zero_grad(set_to_none=True)
    return 0.0


@bug(targets.SUM, stage="gradient", cause="gradient-clipped", late=True)
def gradients_clipped_by_value(original: Any, model: Any, ranks: Any, **options: Any) -> None:
    """Each element of the gradient is clipped separately."""
    import torch

    original(model, ranks, **options)
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.02)


@bug(targets.SUM, stage="gradient", cause="gradient-scaled-by-tensor", late=True)
def gradients_clipped_by_tensor(original: Any, model: Any, ranks: Any, **options: Any) -> None:
    """Gradients are clipped by the norm of each tensor instead of the global norm."""
    import torch

    original(model, ranks, **options)
    for parameter in model.parameters():
        if parameter.grad is not None:
            torch.nn.utils.clip_grad_norm_([parameter], 0.05)


@bug("rldbg.trainer.policy.learning_rate", stage="parameter", cause="learning-rate", late=True)
def learning_rate_not_decayed(original: Any, settings: Any, _step: int, steps: int) -> float:
    """The schedule is never stepped."""
    return float(original(settings, 0, steps))


@bug(targets.OPTIMIZER, stage="parameter", cause="optimizer-epsilon", late=True)
def optimizer_epsilon_too_large(original: Any, parameters: Any, settings: Any) -> Any:
    """Adam's epsilon is 1e-5, a thousand times the usual one."""
    return original(parameters, replace(settings, eps=1e-5))


@bug("rldbg.trainer.policy.PolicyWorker.update", stage="parameter", cause="optimizer-reset", late=True)
def optimizer_state_lost(original: Any, worker: Any, step: int, shards: Any) -> Any:
    """The optimizer is recreated every step, so its moments are reset."""
    from rldbg.trainer.steps import make_optimizer

    worker._optimizer = make_optimizer(worker._model.parameters(), worker._recipe.optimizer)
    return original(worker, step, shards)


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
