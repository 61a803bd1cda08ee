"""Rollouts that ask the user's inference servers (`inference.addresses`) instead of those of the run.

New weights are sent to every server over HTTP before anything is generated with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rldbg.inference import HttpSampling
from rldbg.replay import Trajectory
from rldbg.trainer.actors import RolloutPool
from rldbg.trainer.rollout import Task, make_rollout_worker
from rldbg.trainer.settings import Recipe
from rldbg.trainer.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from rldbg.trainer.cluster import Cluster
    from rldbg.trainer.controller import Rollouts


def served_rollouts(recipe: Recipe, cluster: Cluster | None, on_loss: Callable[[str], None]) -> Rollouts:
    """Rollout workers of a cluster, or one in this process, that use the recipe's servers, which must be running."""
    for server in samplers(recipe):
        server.check()
    if cluster is None:
        return InProcessServedRollouts(recipe)
    return ServedRolloutPool(cluster, recipe, on_loss=on_loss)


class ServedRolloutPool(RolloutPool):
    """Rollout workers of a cluster. They use the servers as samplers; only the weights change."""

    def publish(self, weights: Any, policy_version: int) -> None:
        import ray

        servers = samplers(self._recipe)
        held = ray.get(weights)
        for server in servers:
            server.load_weights(held, policy_version)
        self._samplers = list(servers)


class InProcessServedRollouts:
    """A rollout worker in this process that asks the first server."""

    def __init__(self, recipe: Recipe) -> None:
        self._sampler = samplers(recipe)[0]
        self._worker = make_rollout_worker(recipe, self._sampler.generate)

    def collect(self, step: int, tasks: Sequence[Task]) -> list[Trajectory]:
        return self._worker.run(step, tasks)

    def publish(self, weights: Any, policy_version: int) -> None:
        self._sampler.load_weights(weights, policy_version)

    def close(self) -> None:
        """The servers are not ours."""


def samplers(recipe: Recipe) -> list[HttpSampling]:
    settings = recipe.inference
    eos_id = load_tokenizer(recipe.model.path).eos_id
    return [
        HttpSampling(address.removeprefix("http://").rstrip("/"), settings.max_new_tokens, settings.temperature, eos_id)
        for address in settings.addresses
    ]
