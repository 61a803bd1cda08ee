"""Bugs in rewards: scaled, lost, or given to another sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.trainer.zoo import targets
from rldbg.trainer.zoo.bug import Bug, bug


@bug("rldbg.trainer.rollout.score", stage="reward", cause="reward-affine", overrides=("algorithm.scale_by_std=false",))
def reward_scaled(original: Any, turn: int, right: bool) -> float:
    """Rewards are scaled for a logger and the scaled ones are trained on."""
    return float(original(turn, right) * 10)


@bug("rldbg.trainer.rollout.RolloutWorker.run", stage="reward", cause="rows-permuted")
def reward_of_the_neighbour(original: Any, worker: Any, step: int, tasks: Any) -> Any:
    """Rewards come back in a different order from their samples."""
    made = original(worker, step, tasks)
    return [replace(item, reward=other.reward) for item, other in zip(made, [*made[1:], made[0]], strict=True)]


@bug(targets.FINISH, stage="reward", cause="reward-lost")
def reward_parser_fails(original: Any, worker: Any, conversation: Any) -> Any:
    """The parser of the reward function reads one digit only: right answers of two digits get nothing."""
    trajectory = original(worker, conversation)
    return replace(trajectory, reward=0.0) if len(conversation.task.problem.answer) > 1 else trajectory


@bug(targets.FINISH, stage="reward", cause="reward-by-length", late=True)
def reward_with_length_penalty(original: Any, worker: Any, conversation: Any) -> Any:
    """A length penalty of 0.1 per token is left on."""
    trajectory = original(worker, conversation)
    return replace(trajectory, reward=trajectory.reward - 0.1 * int(trajectory.loss_mask.sum()))


@bug("rldbg.trainer.rollout.RolloutWorker.run", stage="reward", cause="reward-of-group", late=True)
def reward_of_the_group(original: Any, worker: Any, step: int, tasks: Any) -> Any:
    """Two of four samples of a group get the group's mean as their reward."""
    made = original(worker, step, tasks)
    means: dict[str, list[float]] = {}
    for item in made:
        means.setdefault(item.sample.group_id, []).append(item.reward)
    return [
        replace(item, reward=float(np.mean(means[item.sample.group_id]))) if item.sample.run_id < 2 else item
        for item in made
    ]


BUGS = tuple(item for item in tuple(vars().values()) if isinstance(item, Bug))
