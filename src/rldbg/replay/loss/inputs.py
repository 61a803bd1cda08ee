"""What a loss is computed from: a saved batch as padded tensors, its advantages, and the rows that are this rank's.

Shapes in comments: b rows, t columns of whole sequences, r response columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rldbg.algorithms import grpo_advantages
from rldbg.core import IncompleteDataError
from rldbg.recording import Record
from rldbg.recording import open as open_recording
from rldbg.replay.rollout import ReplayRollout
from rldbg.replay.trajectory import Trajectory, TrajectoryBatch

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LossInputs:
    """A whole batch, on one device. `log_probs` are the recorded ones until a model recomputes them."""

    title: str
    step: int
    batch: TrajectoryBatch
    old_log_probs: torch.Tensor  # [b, r], 0 outside the mask
    advantages: torch.Tensor  # [b, r]
    groups: torch.Tensor  # [b]
    versions: torch.Tensor  # [b, r]

    @property
    def mask(self) -> torch.Tensor:
        return self.batch.response_mask

    def __len__(self) -> int:
        return len(self.batch)


def load_inputs(path: Path | str, *, step: int | None, device: Any, random_advantages: int | None) -> LossInputs:
    """A step of a recording, or a saved batch. Advantages are the recorded ones, else GRPO's from the rewards."""
    import torch

    replay = ReplayRollout(path)
    chosen = replay.steps[0] if step is None else step
    trajectories = replay.trajectories(chosen)
    _check(trajectories, str(path))
    batch = TrajectoryBatch.from_trajectories(trajectories)
    old = torch.where(batch.response_mask != 0, batch.rollout_log_probs, torch.zeros(()))
    names = list(dict.fromkeys(item.sample.group_id for item in trajectories))
    groups = torch.tensor([names.index(item.sample.group_id) for item in trajectories])
    if random_advantages is not None:
        generator = torch.Generator().manual_seed(random_advantages)
        advantages_b = torch.randn(len(trajectories), generator=generator)
    else:
        advantages_b = None
    advantages = _advantages(path, chosen, trajectories, batch, groups, advantages_b)
    return LossInputs(
        title=str(path),
        step=chosen,
        batch=batch.to(device),
        old_log_probs=old.to(device),
        advantages=advantages.to(device),
        groups=groups.to(device),
        versions=_response_rows([_versions(item) for item in trajectories], batch, -1).to(device),
    )


def _check(trajectories: Sequence[Trajectory], title: str) -> None:
    for item in trajectories:
        if item.prompt_length == 0 or not item.loss_mask.any():
            what = "no prompt" if item.prompt_length == 0 else "no token that is trained on"
            raise IncompleteDataError(f"sample {item.sample} of {title} has {what}", "make the batch without that row")
        if item.logprobs is None or np.isnan(item.logprobs[item.loss_mask != 0]).any():
            raise IncompleteDataError(
                f"sample {item.sample} of {title} has no log probs", "record the rollout's log probs: a loss needs them"
            )


def _advantages(
    path: Path | str,
    step: int,
    trajectories: Sequence[Trajectory],
    batch: TrajectoryBatch,
    groups: torch.Tensor,
    given_b: torch.Tensor | None,
) -> torch.Tensor:
    recorded = None if given_b is not None else _recorded_advantages(path, step, trajectories)
    if recorded is not None:
        return _response_rows(recorded, batch, 0)
    per_sample = grpo_advantages(batch.rewards, groups) if given_b is None else given_b
    spread: torch.Tensor = per_sample[:, None] * batch.response_mask
    return spread


def _recorded_advantages(path: Path | str, step: int, trajectories: Sequence[Trajectory]) -> list[np.ndarray] | None:
    """One row per token of the whole sequence, where the recording has them for every sample: per token or as one."""
    rows: dict[Any, np.ndarray] = {}
    for record in open_recording(path).records(step=step):
        if "advantages" in record.fields and "tokens" in record.fields and record.samples:
            rows |= dict(zip(record.samples, _rows(record, "advantages"), strict=True))
    found = [(rows[item.sample], item) for item in trajectories if item.sample in rows]
    spread = [(row * item.loss_mask if row.ndim == 0 else row, item) for row, item in found]
    whole = [row for row, item in spread if len(row) == len(item.tokens)]
    return whole if len(whole) == len(trajectories) else None


def _rows(record: Record, name: str) -> list[np.ndarray]:
    return [np.asarray(row) for row in record.rows(name)]


def _versions(item: Trajectory) -> np.ndarray:
    return np.full(len(item.tokens), -1) if item.policy_versions is None else item.policy_versions


def _response_rows(rows: Sequence[np.ndarray], batch: TrajectoryBatch, fill: float) -> torch.Tensor:
    """The part of each row that lies in the response columns, padded."""
    import torch

    padded = np.full((len(rows), batch.response_width), fill, np.float32 if fill == 0 else np.int64)
    for number, row in enumerate(rows):
        length = int(batch.response_lengths[number])
        padded[number, :length] = row[len(row) - length :]
    return torch.from_numpy(padded)
