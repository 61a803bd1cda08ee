"""How a step's samples are split: into mini-batches (one optimizer step each), over ranks, into micro-batches.

Splits depend on the order of the samples only. A mini-batch's denominator is that of all its ranks together, so that
losses and gradients simply add up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rldbg.algorithms import Aggregation, dapo_advantages, grpo_advantages, informative_groups
from rldbg.core import IncompleteDataError, UsageError
from rldbg.replay import Trajectory, TrajectoryBatch, padded_rows
from rldbg.trainer.settings import AlgorithmSettings, Recipe
from rldbg.trainer.steps import MicroBatch


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All samples of one step, with one advantage each; `trained` is False where the algorithm leaves a sample out."""

    trajectories: tuple[Trajectory, ...]
    advantages: np.ndarray  # float32 [b]
    trained: np.ndarray  # bool [b]
    old_log_probs: tuple[np.ndarray, ...] = ()  # one row of response tokens per sample

    def __len__(self) -> int:
        return len(self.trajectories)

    def rows(self, chosen: range) -> StepBatch:
        part = slice(chosen.start, chosen.stop)
        return StepBatch(self.trajectories[part], self.advantages[part], self.trained[part], self.old_log_probs[part])

    def with_old_log_probs(self, rows: Sequence[np.ndarray]) -> StepBatch:
        return replace(self, old_log_probs=tuple(rows))


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a mini-batch, and the denominator of the whole mini-batch."""

    batch: StepBatch
    denominator: float


def prepare(trajectories: Sequence[Trajectory], algorithm: AlgorithmSettings, *, max_length: int) -> StepBatch:
    """Advantages from rewards, group by group."""
    names = {name: number for number, name in enumerate(dict.fromkeys(item.sample.group_id for item in trajectories))}
    groups = np.asarray([names[item.sample.group_id] for item in trajectories])
    rewards = np.asarray([item.reward for item in trajectories], dtype=np.float32)
    trained = np.ones(len(trajectories), dtype=bool)
    if algorithm.advantages == "dapo":
        lengths = np.asarray([item.response_length for item in trajectories])
        advantages = dapo_advantages(
            rewards,
            groups,
            lengths,
            max_length=max_length,
            overlong_buffer=algorithm.overlong_buffer,
            overlong_factor=algorithm.overlong_factor,
            epsilon=algorithm.epsilon,
        )
        trained = informative_groups(advantages, groups)
    else:
        advantages = grpo_advantages(rewards, groups, scale_by_std=algorithm.scale_by_std, epsilon=algorithm.epsilon)
    return StepBatch(tuple(trajectories), advantages, trained)


def check_divisible(samples: int, recipe: Recipe) -> None:
    parts = recipe.policy.ranks * recipe.policy.mini_batches
    if samples % parts:
        raise UsageError(
            f"{samples} samples per step cannot be divided into {recipe.policy.mini_batches} mini-batches "
            f"over {recipe.policy.ranks} ranks",
            f"make data.prompts_per_step * data.samples_per_prompt a multiple of {parts}",
        )


def places(samples: int, *, ranks: int, mini_batches: int) -> list[list[range]]:
    """Which rows go where: places(...)[rank][mini_batch]. Parts differ by at most one row."""

    def parts(rows: range, count: int) -> list[range]:
        edges = [rows.start + len(rows) * number // count for number in range(count + 1)]
        return [range(start, stop) for start, stop in itertools.pairwise(edges)]

    minis = parts(range(samples), mini_batches)
    return [[parts(rows, ranks)[rank] for rows in minis] for rank in range(ranks)]


def cut(batch: StepBatch, recipe: Recipe) -> list[list[Shard]]:
    """The step's samples for each rank, mini-batch by mini-batch."""
    ranks, minis = recipe.policy.ranks, recipe.policy.mini_batches
    if len(batch) < ranks * minis:
        raise IncompleteDataError(
            f"{len(batch)} samples are too few for {minis} mini-batches over {ranks} ranks", "use fewer ranks"
        )
    layout = places(len(batch), ranks=ranks, mini_batches=minis)
    denominators = [
        mini_batch_denominator([batch.rows(range(first.start, last.stop))], recipe.algorithm.aggregation)
        for first, last in zip(layout[0], layout[-1], strict=True)
    ]
    return [
        [Shard(batch.rows(rows), denominator) for rows, denominator in zip(of_rank, denominators, strict=True)]
        for of_rank in layout
    ]


def in_sample_order(rows: Sequence[Sequence[Sequence[np.ndarray]]], samples: int, recipe: Recipe) -> list[np.ndarray]:
    """rows[rank][mini_batch], one array per sample, put back in the order of the step's samples."""
    ordered: list[np.ndarray] = [np.empty(0)] * samples
    layout = places(samples, ranks=recipe.policy.ranks, mini_batches=recipe.policy.mini_batches)
    for rank_rows, rank_places in zip(rows, layout, strict=True):
        for mini_rows, place in zip(rank_rows, rank_places, strict=True):
            ordered[place.start : place.stop] = mini_rows
    return ordered


def response_log_probs(trajectory: Trajectory) -> np.ndarray:
    """The rollout's own log probs of the response."""
    if trajectory.logprobs is None:
        raise IncompleteDataError(
            f"the trajectory {trajectory.sample} has no rollout log probs", "set algorithm.old_log_probs=policy"
        )
    return trajectory.logprobs[trajectory.prompt_length :]


def mini_batch_denominator(batches: Sequence[StepBatch], how: Aggregation) -> float:
    """What the losses of a mini-batch, given in parts, are divided by: its tokens, or its sequences."""
    tokens = [
        int(item.loss_mask.sum())
        for batch in batches
        for item, trained in zip(batch.trajectories, batch.trained, strict=True)
        if trained
    ]
    if how == "sum":
        return 1.0
    return float(max(sum(tokens) if how == "token_mean" else sum(count > 0 for count in tokens), 1))


def micro_batches(batch: StepBatch, *, size: int, pad_id: int, device: Any = "cpu") -> Iterator[MicroBatch]:
    """The shard in pieces of `size` samples, as tensors; without old log probs those of the rollout are taken."""
    import torch

    for start in range(0, len(batch), size):
        part = batch.rows(range(start, min(start + size, len(batch))))
        padded = TrajectoryBatch.from_trajectories(part.trajectories, pad_id=pad_id)
        width = padded.response_width
        padded = replace(padded, response_mask=padded.response_mask * torch.tensor(part.trained)[:, None])
        old = padded_rows(part.old_log_probs, width) if part.old_log_probs else padded.rollout_log_probs
        advantages = torch.tensor(part.advantages)[:, None].expand(-1, width).contiguous()
        yield MicroBatch(padded.to(device), advantages.to(device), old.to(device))
