"""Rollout workflows of users in one process: run against inference servers, traced, saved as a batch."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.inference.workflows.episode import span
    from rldbg.inference.workflows.episode_trace import read_episode
    from rldbg.inference.workflows.outcome import EpisodeFailure, EpisodeOutcome, RolloutReport
    from rldbg.inference.workflows.rollout_run import RolloutRequest, rollout
    from rldbg.inference.workflows.runner import EpisodeObserver
    from rldbg.inference.workflows.servers import find_servers
    from rldbg.inference.workflows.settings import GenerationSettings, parse_overrides
    from rldbg.inference.workflows.shapes import NamedAsHuggingFace, pretrained_tokenizer

__getattr__, __dir__ = lazy_names(__name__)

__all__ = ["span"]
