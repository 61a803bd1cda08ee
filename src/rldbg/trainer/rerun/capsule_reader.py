"""Capsules read back from a recording: the state before the step, each rank's samples, and the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.core import IncompleteDataError
from rldbg.recording import EncodedArray, Record, Recording
from rldbg.replay import Trajectory, trajectories_of
from rldbg.trainer.capsule import MOMENTS
from rldbg.trainer.shards import Shard, StepBatch


@dataclass(frozen=True, slots=True)
class RankCapsule:
    """What one rank trained on, in its mini-batches, and its results by (epoch, mini-batch)."""

    rank: int
    trajectories: tuple[Trajectory, ...]
    shards: tuple[Shard, ...]
    results: Mapping[tuple[int, int], Record]


class Capsule:
    """The capsules of all ranks of one step."""

    def __init__(self, recording: Recording, step: int) -> None:
        self.step = step
        self._records = {record.key.rank: record for record in recording.records("capsule", step)}
        if 0 not in self._records:
            raise IncompleteDataError(
                f"{recording.title} has capsules of step {step}, but not that of rank 0, which holds the parameters",
                f"rldbg verify {recording.title} lists what is missing",
            )
        self._results = list(recording.records("capsule_result", step))

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._records))

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe the step was trained with, as plain data."""
        return dict(self._records[0].fields["recipe"])

    @property
    def model_config(self) -> dict[str, Any]:
        return dict(self._records[0].fields["model_config"])

    @property
    def pad_id(self) -> int:
        return int(self._records[0].fields["pad_id"])

    @property
    def optimizer_steps(self) -> int:
        return int(self._records[0].fields["optimizer_steps"])

    def parameters(self) -> dict[str, Any]:
        return dict(tensors_of(self._records[0], "param"))

    def moments(self) -> dict[str, dict[str, Any]]:
        """Adam's moments: name of the moment -> name of the parameter -> tensor."""
        return {moment: dict(tensors_of(self._records[0], moment)) for moment in MOMENTS}

    def random_state(self, rank: int) -> dict[str, Any]:
        return dict(tensors_of(self._records[rank], "random_state"))

    def rank(self, rank: int) -> RankCapsule:
        if rank not in self._records:
            raise IncompleteDataError(
                f"no capsule of rank {rank} at step {self.step}; ranks: {', '.join(map(str, self.ranks))}",
                "choose one of them with --rank",
            )
        record = self._records[rank]
        trajectories = tuple(trajectories_of(record))
        results = {
            (result.key.epoch, result.key.mini_batch): result for result in self._results if result.key.rank == rank
        }
        return RankCapsule(rank, trajectories, tuple(_shards(record, trajectories)), results)


def _shards(record: Record, trajectories: Sequence[Trajectory]) -> Iterator[Shard]:
    fields = record.fields
    old = list(record.rows("old_log_probs")) if "old_log_probs" in fields else []
    start = 0
    for rows, denominator in zip(fields["shard_rows"], fields["denominators"], strict=True):
        part = slice(start, start + int(rows))
        batch = StepBatch(
            tuple(trajectories[part]),
            np.asarray(fields["advantages"])[part],
            np.asarray(fields["trained"])[part].astype(bool),
            tuple(old[part]),
        )
        yield Shard(batch, float(denominator))
        start = part.stop


def tensors_of(record: Record, prefix: str) -> Iterator[tuple[str, Any]]:
    """The tensors `prefix:NAME` of a record, with the dtype they had."""
    for name, value in record.fields.items():
        if name.startswith(f"{prefix}:"):
            yield name.partition(":")[2], as_tensor(value)


def as_tensor(value: Any) -> Any:
    """A recorded array as a torch tensor of its own memory; dtypes that numpy lacks are restored bit for bit."""
    import torch

    if isinstance(value, EncodedArray):
        bits = torch.from_numpy(np.array(value.bits))
        return bits.view(getattr(torch, value.dtype))
    return torch.from_numpy(np.array(value))
