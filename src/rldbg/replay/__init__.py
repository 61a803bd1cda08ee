"""Recorded trajectories for a trainer: looked up by (group_id, run_id), step by step, strictly."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.replay.rollout import ReplayRollout, trajectories_of
    from rldbg.replay.rollout_functions import rollout_function
    from rldbg.replay.trajectory import Trajectory, TrajectoryBatch, padded_rows, prompt_hashes

__getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "ReplayRollout",
    "Trajectory",
    "TrajectoryBatch",
    "padded_rows",
    "prompt_hashes",
    "rollout_function",
    "trajectories_of",
]
