"""Recorded trajectories instead of rollout workers and inference servers."""

from collections.abc import Sequence
from typing import Any

from rldbg.core import IncompleteDataError
from rldbg.replay import ReplayRollout, Trajectory
from rldbg.trainer.rollout import Task
from rldbg.trainer.settings import RolloutSettings
from rldbg.trainer.tokenizer import Tokenizer


class ReplayedRollouts:
    """Answers every task from a recording, by (group_id, run_id) and with its prompt unchanged."""

    def __init__(self, settings: RolloutSettings, tokenizer: Tokenizer, *, steps: range) -> None:
        assert settings.replay_from is not None
        self._replay = ReplayRollout(settings.replay_from, format=settings.replay_format)
        self._tokenizer = tokenizer
        self._partial = settings.allow_partial
        missing = [step for step in steps if step not in self._replay.steps]
        if missing and not self._partial:
            raise IncompleteDataError(
                f"{self._replay.path} has no trajectories of step {missing[0]}; {len(steps)} steps are requested",
                f"train with --steps {missing[0] or 1}, or replay a recording that has them all",
            )

    def collect(self, step: int, tasks: Sequence[Task]) -> list[Trajectory]:
        """In the order of the tasks; with `--allow-partial`, without those that were not recorded."""
        if self._partial:
            tasks = [task for task in tasks if self._replay.has(task.sample, step=step)]
            if not tasks:
                raise IncompleteDataError(
                    f"{self._replay.path} has none of the samples of step {step}",
                    "replay with the data and seed of the recorded run",
                )
        return [
            self._replay.get(task.sample, step=step, prompt=self._tokenizer.encode(task.problem.prompt))
            for task in tasks
        ]

    def publish(self, weights: Any, policy_version: int) -> None:
        """Nothing generates, so nothing needs weights."""

    def close(self) -> None:
        """Nothing is held."""
