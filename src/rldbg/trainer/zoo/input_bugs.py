"""Bugs in what the model is given and how its numbers overflow: extra and missing tokens, half precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="tokens-added", late=True)
def first_token_added_in_the_trainer(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The trainer's tokenizer adds a first token that the engine never saw."""
    import torch

    for micro in original(*arguments, **options):
        batch = micro.batch
        ids = torch.cat([torch.zeros_like(batch.input_ids[:, :1]), batch.input_ids], 1)
        attended = torch.cat([torch.zeros_like(batch.attention_mask[:, :1]), batch.attention_mask], 1)
        first = attended.argmax(1)
        for row, column in enumerate(first.tolist()):
            ids[row, column - 1], attended[row, column - 1] = 2, 1
        positions = (attended.cumsum(1) - 1).clamp(min=0)
        yield replace(micro, batch=replace(batch, input_ids=ids, attention_mask=attended, position_ids=positions))


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="tokens-changed", late=True)
def end_of_prompt_replaced(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The trainer's chat template ends the prompt with a different token from the engine's."""
    for micro in original(*arguments, **options):
        ids = micro.batch.input_ids.clone()
        ids[:, -micro.batch.response_width - 1] = 2
        yield replace(micro, batch=replace(micro.batch, input_ids=ids))


@bug(targets.MICRO_BATCHES, stage="forward", cause="positions", late=True, needs=("padding",))
def positions_count_padding(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """Position ids count columns, padding before the prompt included."""
    import torch

    for micro in original(*arguments, **options):
        columns = torch.arange(micro.batch.input_ids.shape[1])[None].expand_as(micro.batch.input_ids)
        yield replace(micro, batch=replace(micro.batch, position_ids=columns.contiguous()))


@bug(targets.FORWARD, stage="forward", cause="non-finite", late=True)
def training_overflows_in_half_precision(original: Any, *arguments: Any, **options: Any) -> Any:
    """In training log probs are scaled up in float16, where unlikely tokens overflow."""
    import torch

    result = original(*arguments, **options)
    if not torch.is_grad_enabled():
        return result
    return replace(result, log_probs=(result.log_probs * 2.0**14).half().float() / 2.0**14)


@bug(targets.COMPUTE_LOSS, stage="loss", cause="entropy-aggregation", late=True, needs=("padding",))
def entropy_over_padding(original: Any, result: Any, micro: Any, algorithm: Any, *, denominator: Any) -> Any:
    """The entropy term sums over padding columns too."""
    terms = original(result, micro, algorithm, denominator=denominator)
    entropy = result.entropy.sum() / denominator
    return replace(terms, entropy=entropy, loss=terms.loss - algorithm.entropy_coeff * (entropy - terms.entropy))


@bug(targets.COMPUTE_LOSS, stage="loss", cause="kl-estimator", late=True)
def kl_clamped(original: Any, result: Any, micro: Any, algorithm: Any, *, denominator: Any) -> Any:
    """The KL estimate of a token is clipped to at most 0.01."""
    import torch

    terms = original(result, micro, algorithm, denominator=denominator)
    gap = micro.reference_log_probs - result.log_probs
    kl = ((torch.expm1(gap) - gap).clamp(max=0.01) * (micro.batch.response_mask != 0)).sum() / denominator
    return replace(terms, kl=kl, loss=terms.loss + algorithm.kl_coeff * (kl - terms.kl))


@bug(targets.OPTIMIZER, stage="parameter", cause="optimizer-bias-correction", late=True)
def bias_correction_missing(original: Any, parameters: Any, settings: Any) -> Any:
    """Adam's bias correction is missing."""
    return _stepped(
        original(parameters, settings), lambda age, beta1, beta2: (1 - beta1**age) / (1 - beta2**age) ** 0.5
    )


@bug(targets.OPTIMIZER, stage="parameter", cause="optimizer-bias-correction", late=True)
def optimizer_step_counted_twice(original: Any, parameters: Any, settings: Any) -> Any:
    """Adam's step count is advanced by two per step."""

    def twice(age: int, beta1: float, beta2: float) -> float:
        return float((1 - beta1**age) / (1 - beta1 ** (2 * age)) * ((1 - beta2 ** (2 * age)) / (1 - beta2**age)) ** 0.5)

    return _stepped(original(parameters, settings), twice)


def _stepped(optimizer: Any, factor: Any) -> Any:
    """The optimizer with its learning rate multiplied by what another correction of the moments would make of it."""
    step, ages = optimizer.step, {"count": 0}

    def instead(*arguments: Any, **options: Any) -> Any:
        ages["count"] += 1
        for group in optimizer.param_groups:
            group["lr"] *= factor(ages["count"], *group["betas"])
        return step(*arguments, **options)

    optimizer.step = instead
    return optimizer


@bug(targets.OPTIMIZER, stage="parameter", cause="weight-decay", late=True)
def weight_decay_in_the_gradient(original: Any, parameters: Any, settings: Any) -> Any:
    """Adam with its weight decay added to the gradient, where AdamW without decay was meant."""
    import torch

    kept = original(parameters, settings)
    group = kept.param_groups[0]
    return torch.optim.Adam(
        group["params"], lr=group["lr"], betas=group["betas"], eps=group["eps"], weight_decay=0.01, foreach=False
    )


@bug("rldbg.trainer.policy.learning_rate", stage="parameter", cause="learning-rate", late=True)
def learning_rate_schedule_one_ahead(original: Any, settings: Any, step: int, steps: int) -> float:
    """The schedule is stepped before the optimizer."""
    return float(original(settings, step + 1, steps))


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
