"""Bugs in old, new and reference log probs: batches, padding, temperature, precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug


@contextmanager
def temperature_one(worker: Any) -> Iterator[None]:
    """What the worker computes inside ignores the recipe's temperature."""
    recipe = worker._recipe
    worker._recipe = replace(recipe, inference=replace(recipe.inference, temperature=1.0))
    try:
        yield
    finally:
        worker._recipe = recipe


@bug(targets.OLD, stage="old_log_probs", cause="shift-by-one")
def old_log_probs_shifted(original: Any, worker: Any, micro: Any) -> Any:
    """The old log probs are shifted one token late."""
    return [np.concatenate([row[:1], row[:-1]]) for row in original(worker, micro)]


@bug(targets.OLD, stage="old_log_probs", cause="temperature")
def old_log_probs_without_temperature(original: Any, worker: Any, micro: Any) -> Any:
    """The pass for the old log probs does not divide the logits by the temperature."""
    with temperature_one(worker):
        return original(worker, micro)


@bug(targets.OLD, stage="old_log_probs", cause="precision", needs=("float32",))
def old_log_probs_in_bfloat16(original: Any, worker: Any, micro: Any) -> Any:
    """The old log probs are kept in bfloat16 to save memory."""
    import torch

    return [torch.from_numpy(row).to(torch.bfloat16).float().numpy() for row in original(worker, micro)]


@bug("rldbg.trainer.learner.in_sample_order", stage="old_log_probs", cause="rows-permuted", needs=("ranks",))
def old_log_probs_in_rank_order(original: Any, rows: Any, samples: int, recipe: Any) -> Any:
    """The ranks' results are concatenated in rank order, but mini-batches were split across ranks."""
    fitting = original(rows, samples, recipe)
    in_rank_order = [row for of_rank in rows for of_mini in of_rank for row in of_mini]
    padded = [np.pad(row, (0, 16)) for row in in_rank_order]
    return [row[: len(like)] for row, like in zip(padded, fitting, strict=True)]


@bug(targets.OLD, stage="old_log_probs", cause="of-reference")
def old_log_probs_of_the_reference(original: Any, worker: Any, micro: Any) -> Any:
    """The old log probs are computed by the frozen reference model."""
    model, worker._model = worker._model, worker._reference
    try:
        return original(worker, micro)
    finally:
        worker._model = model


@bug(targets.TRAIN_MICRO, stage="old_log_probs", cause="ratio-always-one")
def old_log_probs_are_the_new_ones(original: Any, model: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The ratio is taken against the log probs of the same pass, so it is always 1 and nothing is ever clipped."""
    import torch

    from rldbg.trainer.steps import forward

    with torch.no_grad():
        now = forward(model, micro.batch, temperature=options["temperature"]).log_probs
    micro.old_log_probs.copy_(now)
    return original(model, micro, *arguments, **options)


@bug(targets.FORWARD, stage="forward", cause="temperature")
def training_without_temperature(original: Any, model: Any, batch: Any, **options: Any) -> Any:
    """The training pass does not divide the logits by the temperature the samples were generated with."""
    return original(model, batch, **(options | {"temperature": 1.0}))


@bug(targets.FORWARD, stage="forward", cause="precision", needs=("float32",))
def log_softmax_in_bfloat16(original: Any, *arguments: Any, **options: Any) -> Any:
    """The training pass rounds its log probs to bfloat16."""
    import torch

    result = original(*arguments, **options)
    return replace(result, log_probs=result.log_probs.to(torch.bfloat16).float())


@bug(targets.FORWARD, stage="forward", cause="scaled")
def entropy_in_bits(original: Any, *arguments: Any, **options: Any) -> Any:
    """The entropy is taken to base 2."""
    result = original(*arguments, **options)
    return replace(result, entropy=result.entropy / np.log(2))


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="padding-attended", needs=("padding",))
def padding_is_attended(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The attention mask is left out, so the model attends to the padding before shorter prompts."""
    for micro in original(*arguments, **options):
        yield replace(micro, batch=replace(micro.batch, attention_mask=micro.batch.attention_mask * 0 + 1))


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="positions")
def positions_start_again(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The position ids of the response count from 0 again."""
    for micro in original(*arguments, **options):
        positions, width = micro.batch.position_ids.clone(), micro.batch.response_width
        positions[:, -width:] -= positions[:, -width : -width + 1]
        yield replace(micro, batch=replace(micro.batch, position_ids=positions))


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="padding-side", needs=("padding",))
def prompts_padded_on_the_right(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """There is padding between prompt and response, so the first response token is predicted from padding."""
    for micro in original(*arguments, **options):
        ids, attended = micro.batch.input_ids.clone(), micro.batch.attention_mask.clone()
        prompt = ids.shape[1] - micro.batch.response_width
        for row, padding in enumerate((attended[:, :prompt] == 0).sum(1).tolist()):
            for columns in (ids, attended):
                columns[row, :prompt] = columns[row, :prompt].roll(-padding)
        positions = (attended.cumsum(1) - 1).clamp(min=0)
        batch = replace(micro.batch, input_ids=ids, attention_mask=attended, position_ids=positions)
        yield replace(micro, batch=batch)


@bug(targets.TRAIN_MICRO, stage="forward", cause="padding-in-mask", needs=("padding",))
def padding_in_the_mask(original: Any, model: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The response mask is all ones: padding after short answers is trained on."""
    micro.batch.response_mask.fill_(1)
    return original(model, micro, *arguments, **options)


@bug("rldbg.trainer.policy.PolicyWorker._with_reference", stage="forward", cause="reference-is-policy")
def reference_moves_along(original: Any, worker: Any, micro: Any) -> Any:
    """The reference shares its tensors with the policy, so the KL to it is always 0."""
    reference, worker._reference = worker._reference, worker._model
    try:
        return original(worker, micro)
    finally:
        worker._reference = reference


@bug(targets.CUT, stage="forward", cause="samples-repeated", needs=("ranks",))
def ranks_share_their_data(original: Any, batch: Any, recipe: Any) -> Any:
    """No distributed sampler: every rank trains on what rank 0 was given."""
    shards = original(batch, recipe)
    return [shards[0] for _ in shards] if batch.old_log_probs else shards


@bug(targets.OLD, stage="old_log_probs", cause="noise", late=True)
def old_log_probs_with_dropout(original: Any, worker: Any, micro: Any) -> Any:
    """The pass for the old log probs runs with dropout."""
    generator = np.random.default_rng(len(micro.batch.samples))
    rows = original(worker, micro)
    return [(row + 0.1 * generator.standard_normal(len(row))).astype(np.float32) for row in rows]


@bug(targets.OLD, stage="old_log_probs", cause="zero-filled", late=True)
def old_log_probs_missing_at_the_end(original: Any, worker: Any, micro: Any) -> Any:
    """The last old log prob of every row is lost and replaced by 0."""
    return [np.append(row[:-1], np.float32(0)) for row in original(worker, micro)]


@bug("rldbg.trainer.policy.PolicyWorker._with_reference", stage="forward", cause="temperature", late=True)
def reference_without_temperature(original: Any, worker: Any, micro: Any) -> Any:
    """The reference's logits are not divided by the temperature."""
    with temperature_one(worker):
        return original(worker, micro)


@bug(targets.FORWARD, stage="forward", cause="shift-by-one", late=True)
def training_log_probs_shifted(original: Any, *arguments: Any, **options: Any) -> Any:
    """In the training pass logits and targets are off by one."""
    result = original(*arguments, **options)
    return replace(result, log_probs=result.log_probs.roll(1, dims=1))


@bug(targets.TRAIN_MICRO, stage="forward", cause="samples-masked-out", late=True)
def truncated_samples_left_out(original: Any, model: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """Samples that reach the length limit are masked out in the loss."""
    mask = micro.batch.response_mask
    mask[micro.batch.response_lengths == micro.batch.response_lengths.max()] = 0
    return original(model, micro, *arguments, **options)


@bug("rldbg.trainer.steps.log_softmax", stage="old_log_probs", cause="softmax-twice", late=True)
def softmax_twice(original: Any, logits: Any) -> Any:
    """The model's head gives probabilities already, and they are normalised as if they were logits."""
    return original(original(logits).exp())


@bug(targets.FORWARD, stage="forward", cause="precision", late=True, needs=("float32",))
def logits_in_bfloat16(original: Any, model: Any, *arguments: Any, **options: Any) -> Any:
    """The training pass has its logits in bfloat16, although the log softmax is in float32."""
    import torch

    class Rounded:
        def __call__(self, **inputs: Any) -> Any:
            output = model(**inputs)
            output.logits = output.logits.to(torch.bfloat16)
            return output

    is_training = torch.is_grad_enabled()
    return original(Rounded() if is_training else model, *arguments, **options)


@bug(targets.FORWARD, stage="forward", cause="temperature", late=True)
def temperature_applied_twice(original: Any, *arguments: Any, **options: Any) -> Any:
    """In training the logits are divided by the temperature in the model's wrapper and in the loss."""
    return original(*arguments, **(options | {"temperature": options["temperature"] ** 2}))


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="tokens-not-attended", late=True)
def prompt_cut_on_the_left(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The trainer's limit on prompts is one token short: it does not see the first token of the longest ones."""
    for micro in original(*arguments, **options):
        attended = micro.batch.attention_mask.clone()
        attended[attended[:, 0] != 0, 0] = 0
        yield replace(micro, batch=replace(micro.batch, attention_mask=attended))


@bug("rldbg.trainer.policy.PolicyWorker.update", stage="forward", cause="reference-is-old-policy", late=True)
def reference_refreshed_each_step(original: Any, worker: Any, step: int, shards: Any) -> Any:
    """The reference is copied from the policy at the start of every step."""
    worker._reference.load_state_dict(worker._model.state_dict())
    return original(worker, step, shards)


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
