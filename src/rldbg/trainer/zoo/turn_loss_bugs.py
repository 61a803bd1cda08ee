"""Bugs that treat the turns of a conversation unlike each other: in the loss, the clip, the mask, the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug, replaced
from rldbg.trainer.zoo.turn_bugs import TURNS, answers

_ONE_RANK = Lock()


def _turns(mask: Any) -> Any:
    """[b, r]: the number of the answer that a trained token belongs to, from 1; 0 elsewhere."""
    import torch

    numbers = torch.zeros_like(mask)
    for row, one in enumerate(mask.cpu().numpy()):
        for number, part in enumerate(answers(one), start=1):
            numbers[row, part] = number
    return numbers


@bug(targets.AGGREGATE, stage="loss", cause="aggregation", overrides=TURNS, late=True)
def loss_averaged_by_turn(_original: Any, values: Any, mask: Any, _how: str, _denominator: float) -> Any:
    """Each turn's tokens are averaged, then the turns of a sample, then the samples."""
    total, turns = 0.0, _turns(mask)
    for row, own in zip(values, turns, strict=True):
        parts = [row[own == number].mean() for number in range(1, int(own.max()) + 1)]
        total = total + sum(parts) / max(len(parts), 1)
    return total / 16


@bug(targets.ACCUMULATE, stage="advantage", cause="divided-by-turns", overrides=TURNS, late=True)
def advantage_shared_among_turns(original: Any, worker: Any, place: Any, shard: Any) -> Any:
    """A sample's advantage is divided by the number of its answers."""
    counts = np.asarray([max(len(answers(item.loss_mask)), 1) for item in shard.batch.trajectories], np.float32)
    return original(
        worker, place, replace(shard, batch=replace(shard.batch, advantages=shard.batch.advantages / counts))
    )


@bug(targets.TRAIN_MICRO, stage="forward", cause=("mask-lost", "untrained-in-mask"), overrides=TURNS, late=True)
def mask_of_later_turns_one_late(original: Any, model: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """From the second answer on, the trainer's mask begins and ends one token late."""
    mask = micro.batch.response_mask
    for row, one in enumerate(mask.cpu().numpy()):
        for part in answers(one)[1:]:
            mask[row, part.start] = 0
            mask[row, part.stop : part.stop + 1] = 1
    return original(model, micro, *arguments, **options)


@bug(targets.MICRO_BATCHES, stage="old_log_probs", cause="tokens-changed", overrides=TURNS, late=True)
def tool_text_tokenised_again(original: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
    """The trainer's tokenizer writes the first token of a tool's text differently from the engine's."""
    for micro in original(*arguments, **options):
        ids, width = micro.batch.input_ids.clone(), micro.batch.response_width
        for row, mask in enumerate(micro.batch.response_mask.cpu().numpy()):
            parts = answers(mask)
            if len(parts) > 1:
                ids[row, ids.shape[1] - width + parts[0].stop] = 2
        yield replace(micro, batch=replace(micro.batch, input_ids=ids))


@bug(targets.FINISH, stage="reward", cause="reward-by-turn", overrides=TURNS, late=True)
def only_the_first_answer_rewarded(original: Any, worker: Any, conversation: Any) -> Any:
    """Answers after the first one count as wrong."""
    trajectory = original(worker, conversation)
    return trajectory if conversation.turns == 1 else replace(trajectory, reward=0.0)


@bug(targets.COMPUTE_LOSS, stage="ratio", cause="ratio-of-turn", overrides=TURNS, late=True)
def ratio_of_the_turn(original: Any, result: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The geometric mean of a turn's ratios is used instead of each token's ratio."""
    turns = _turns(micro.batch.response_mask)
    gap = (result.log_probs - micro.old_log_probs) * (turns > 0)
    mean = gap.clone()
    for number in range(1, int(turns.max()) + 1):
        own = turns == number
        average = (gap * own).sum(1, keepdim=True) / own.sum(1, keepdim=True).clamp(min=1)
        mean = mean.where(~own, average)
    return original(result, replace(micro, old_log_probs=result.log_probs - mean), *arguments, **options)


@bug(targets.COMPUTE_LOSS, stage="loss", cause="clip", overrides=TURNS, late=True)
def only_the_first_turn_clipped(original: Any, result: Any, micro: Any, *arguments: Any, **options: Any) -> Any:
    """The clip is applied to the tokens of the first answer."""
    turns = _turns(micro.batch.response_mask)

    def loss(clipped: Any, *values: Any, **bounds: Any) -> Any:
        wide = clipped(*values, **(bounds | {"lowest_ratio": 0.0, "highest_ratio": 1e6}))
        narrow = clipped(*values, **bounds)
        return replace(narrow, values=narrow.values.where(turns == 1, wide.values))

    # Ranks are threads of one process: each needs its own turns.
    with _ONE_RANK, replaced(targets.POLICY_LOSS, loss):
        return original(result, micro, *arguments, **options)


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
