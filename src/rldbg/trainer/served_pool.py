"""Rollout workers of a cluster that ask inference servers of the user's."""

from __future__ import annotations

from typing import Any

from rldbg.trainer.actors import RolloutPool
from rldbg.trainer.served_rollouts import samplers


class ServedRolloutPool(RolloutPool):
    """The pool's samplers are the servers; they stay the same, their weights do not."""

    def publish(self, weights: Any, policy_version: int) -> None:
        import ray

        servers = samplers(self._recipe)
        held = ray.get(weights)
        for server in servers:
            server.load_weights(held, policy_version)
        self._samplers = list(servers)
