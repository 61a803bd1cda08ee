"""Recorded trajectories as a trainer's own rollout function: `rollout_func(prompts, trainer)`.

The n-th call gets the n-th recorded step, and each prompt the samples recorded for exactly its tokens, in order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import IncompleteDataError
from rldbg.replay.rollout import ReplayRollout
from rldbg.replay.trajectory import Trajectory


def rollout_function(path: Path | str) -> Callable[[Sequence[Any], Any], dict[str, Any]]:
    """A rollout function that generates nothing: GRPOTrainer(..., rollout_func=rollout_function("my-run")).

    It returns `prompt_ids`, `completion_ids` and `logprobs` (NaN where none were recorded), `env_mask` where a token of
    the response was not sampled, and `recorded_reward`, which reward functions get as a keyword.
    """
    replay = ReplayRollout(path)
    steps = iter(replay.steps)

    def rollout(prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        step = next(steps, None)
        if step is None:
            raise IncompleteDataError(
                f"{path} has {len(replay.steps)} steps of trajectories, all of them used",
                "train only the steps that were recorded",
            )
        waiting: dict[tuple[int, ...], deque[Trajectory]] = defaultdict(deque)
        for trajectory in sorted(replay.trajectories(step), key=lambda item: item.sample):
            waiting[_prompt(trajectory)].append(trajectory)
        return _columns([_take(waiting, _tokenized(prompt, trainer), prompt, step, path) for prompt in prompts])

    return rollout


def _prompt(trajectory: Trajectory) -> tuple[int, ...]:
    trained = np.flatnonzero(trajectory.loss_mask)
    return tuple(trajectory.tokens[: trained[0] if trained.size else None].tolist())


def _tokenized(prompt: Any, trainer: Any) -> tuple[int, ...]:
    tokenizer = trainer.processing_class
    if isinstance(prompt, str):
        return tuple(tokenizer(text=prompt)["input_ids"])
    made = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=True)
    return tuple(made["input_ids"])


def _take(
    waiting: dict[tuple[int, ...], deque[Trajectory]], tokens: tuple[int, ...], prompt: Any, step: int, path: Path | str
) -> Trajectory:
    if not waiting[tokens]:
        raise IncompleteDataError(
            f"{path} has no trajectory left for the prompt {str(prompt)[-80:]!r} at step {step}",
            "replay with the data, order and number of samples of the recorded run",
        )
    return waiting[tokens].popleft()


def _columns(chosen: Sequence[Trajectory]) -> dict[str, Any]:
    lengths = [len(_prompt(item)) for item in chosen]
    pairs = list(zip(chosen, lengths, strict=True))
    missing = [np.full(len(item.tokens), np.nan) if item.logprobs is None else item.logprobs for item in chosen]
    return {
        "prompt_ids": [item.tokens[:length].tolist() for item, length in pairs],
        "completion_ids": [item.tokens[length:].tolist() for item, length in pairs],
        "logprobs": [row[length:].tolist() for row, length in zip(missing, lengths, strict=True)],
        "env_mask": [(item.loss_mask[length:] != 0).astype(int).tolist() for item, length in pairs],
        "recorded_reward": [float(item.reward) for item in chosen],
    }
