"""`ReplayRollout`: the trajectories of a recording, served to any trainer by step and by (group_id, run_id).

It never makes anything up: what is not in the recording is an error that says what was looked for, and where.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import IncompleteDataError, SampleId, UsageError, number_ranges
from rldbg.recording import Record, Recording
from rldbg.recording import open as open_recording
from rldbg.replay.trajectory import Trajectory, TrajectoryBatch

_KINDS = ("trajectory", "prepared_trajectories")


class ReplayRollout:
    """Recorded trajectories.

    `path` is a trajectory file, a folder of them, a recording or a run folder; `format` (pt, jsonl, safetensors) is
    only checked, never guessed against. Nothing is read before it is asked for.
    """

    def __init__(self, path: Path | str, *, format: str | None = None) -> None:
        self.path = str(path)
        self._recording: Recording = open_recording(path)
        kind = next((kind for kind in _KINDS if self._recording.steps(kind)), None)
        if kind is None:
            found = ", ".join(self._recording.kinds()) or "nothing"
            raise IncompleteDataError(
                f"{self.path} holds no trajectories to replay, but {found}",
                "record with debug.dump_options.trajectory=true",
            )
        self._kind = kind
        self._check_format(format)
        self._step: int | None = None
        self._by_sample: dict[SampleId, Trajectory] = {}

    def _check_format(self, format: str | None) -> None:
        for entry in self._recording.entries(self._kind):
            if format is not None and not entry.file.endswith(f".{format}"):
                raise UsageError(
                    f"trajectory_format is {format}, but {self.path} holds {entry.file}",
                    "omit trajectory_format to detect it from the file",
                )

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps there are trajectories of."""
        return self._recording.steps(self._kind)

    def __iter__(self) -> Iterator[tuple[int, tuple[Trajectory, ...]]]:
        """Step by step, in order."""
        return ((step, self.trajectories(step)) for step in self.steps)

    def trajectories(self, step: int) -> tuple[Trajectory, ...]:
        """All trajectories of a step, in the order they were recorded; validation samples are not among them."""
        return tuple(self._load(step).values())

    def get(self, sample: SampleId, *, step: int, prompt: Sequence[int] | None = None) -> Trajectory:
        """The trajectory of one sample; with `prompt`, only if it was made from exactly these tokens."""
        trajectory = self._load(step).get(sample)
        if trajectory is None:
            raise self._missing(sample, step)
        if prompt is not None:
            self._check_prompt(trajectory, np.asarray(prompt), step)
        return trajectory

    def has(self, sample: SampleId, *, step: int) -> bool:
        return step in self.steps and sample in self._load(step)

    def as_batch(self, step: int, *, pad_id: int = 0) -> TrajectoryBatch:
        """A step's trajectories as padded tensors."""
        return TrajectoryBatch.from_trajectories(self.trajectories(step), pad_id=pad_id)

    def _load(self, step: int) -> dict[SampleId, Trajectory]:
        if self._step != step:
            if step not in self.steps:
                raise IncompleteDataError(
                    f"{self.path} has no trajectories of step {step}; it has {_ranges(self.steps)}",
                    "train only the steps that were recorded, or replay a recording that has them",
                )
            loaded: dict[SampleId, Trajectory] = {}
            for record in self._recording.records(self._kind, step):
                for trajectory in trajectories_of(record):
                    if trajectory.sample in loaded:
                        raise IncompleteDataError(
                            f"{self.path} has the sample {trajectory.sample} twice at step {step} ({record.source})",
                            "replay a recording of one run",
                        )
                    loaded[trajectory.sample] = trajectory
            self._step, self._by_sample = step, loaded
        return self._by_sample

    def _missing(self, sample: SampleId, step: int) -> IncompleteDataError:
        same_group = sorted(other.run_id for other in self._by_sample if other.group_id == sample.group_id)
        if same_group:
            found = f"of its group there are runs {_ranges(same_group)}"
        else:
            groups = list(dict.fromkeys(other.group_id for other in self._by_sample))
            found = f"its groups are {', '.join(groups[:3])}{' ...' if len(groups) > 3 else ''}"
        return IncompleteDataError(
            f"{self.path} has no trajectory (group_id={sample.group_id!r}, run_id={sample.run_id}) "
            f"at step {step}; {found}",
            "replay with the data, seed and sizes of the recorded run, or pass --allow-partial to skip it",
        )

    def _check_prompt(self, trajectory: Trajectory, prompt: np.ndarray, step: int) -> None:
        recorded = trajectory.tokens[: len(prompt)]
        if (
            len(recorded) == len(prompt)
            and np.array_equal(recorded, prompt)
            and not trajectory.loss_mask[: len(prompt)].any()
        ):
            return
        common = min(len(recorded), len(prompt))
        differing = np.flatnonzero(recorded[:common] != prompt[:common])
        place = int(differing[0]) if len(differing) else common
        raise IncompleteDataError(
            f"the prompt of (group_id={trajectory.sample.group_id!r}, run_id={trajectory.sample.run_id}) at step "
            f"{step} has changed since {self.path} was recorded: it differs from token {place} on",
            "replay with the data and tokenizer of the recorded run",
        )


def trajectories_of(record: Record) -> Iterator[Trajectory]:
    """The rows of a record as trajectories."""
    if not record.samples:
        raise IncompleteDataError(
            f"{record.source or record.key} has no sample ids: nothing can be matched by (group_id, run_id)",
            "record with group_id and run_id in each trajectory's extra_fields",
        )
    for row, sample in enumerate(record.samples):
        if bool(_row(record, "is_val", row, False)):
            continue
        logprobs, versions = _row(record, "logprobs", row, None), _row(record, "policy_versions", row, None)
        tokens = np.asarray(_row(record, "tokens", row, ()), dtype=np.int64)
        yield Trajectory(
            sample=sample,
            tokens=tokens,
            loss_mask=np.asarray(_row(record, "loss_mask", row, ()), dtype=np.int64),
            reward=float(_row(record, "reward", row, 0.0)),
            logprobs=None if logprobs is None or not len(logprobs) else np.asarray(logprobs, dtype=np.float32),
            policy_versions=None if versions is None or not len(versions) else np.asarray(versions, dtype=np.int64),
            extra_fields=dict(_row(record, "extra_fields", row, None) or {}),
        )


def _row(record: Record, name: str, row: int, default: Any) -> Any:
    """One sample's value of a field, which may be ragged, padded, or a list."""
    value = record.fields.get(name)
    return default if value is None else value[row]


def _ranges(numbers: Sequence[int]) -> str:
    """0-3, 5: a list of numbers for people."""
    parts = number_ranges(numbers)
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts) or "none"
