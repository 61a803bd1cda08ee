"""The workers of a run as Ray actors, and the two groups the controller talks to: all ranks, all rollout workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rldbg.inference import Generation, GenerationRequest, HttpSampling
from rldbg.replay import Trajectory
from rldbg.trainer.cluster import Cluster, WorkerLostError, explain
from rldbg.trainer.distributed import Rendezvous
from rldbg.trainer.inference_server import InferenceServer
from rldbg.trainer.observer import RecordingPlan
from rldbg.trainer.policy import PolicyWorker, RankUpdate
from rldbg.trainer.rollout import RolloutTask, make_rollout_worker
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import Shard
from rldbg.trainer.tokenizer import load_tokenizer
from rldbg.weights import Fingerprint

_log = logging.getLogger(__name__)
_CHUNKS_PER_WORKER = 4
_CLOSE_S = 60.0


class PolicyActor(PolicyWorker):
    """A rank of the policy in its own process."""

    def host(self) -> str:
        import ray

        return str(ray.util.get_node_ip_address())


class RolloutActor:
    """A rollout worker in its own process."""

    def __init__(self, *, recipe: Recipe, number: int) -> None:
        self._recipe = recipe
        self._number = number

    def __repr__(self) -> str:
        return f"rollout/{self._number}"

    def run(self, step: int, tasks: Sequence[RolloutTask], sampler: Sampling) -> list[Trajectory]:
        replica = int(sampler.name.rpartition("/")[2]) if isinstance(sampler, ActorSampling) else 0
        return make_rollout_worker(self._recipe, sampler.generate, replica=replica).run(step, tasks)


class Sampling(Protocol):
    """What a rollout worker asks: an inference server's actor, or a service. It pickles."""

    def generate(self, requests: list[GenerationRequest]) -> list[Generation]: ...


@dataclass(frozen=True, slots=True)
class ActorSampling:
    """An inference server that is an actor; errors about a lost one use its name."""

    name: str
    actor: Any

    def generate(self, requests: list[GenerationRequest]) -> list[Generation]:
        import ray

        try:
            answers: list[Generation] = ray.get(self.actor.generate.remote(requests))
        except ray.exceptions.RayError as error:
            raise explain(self.name, error) from error
        return answers


class RayPolicy:
    """Every rank of the policy; each call goes to all of them and waits for all."""

    def __init__(self, cluster: Cluster, recipe: Recipe, recording: RecordingPlan) -> None:
        self._cluster = cluster
        self._recipe = recipe
        self._actors = {
            f"policy/{rank}": cluster.spawn(
                f"policy/{rank}",
                PolicyActor,
                gpus=gpu_share(cluster, recipe, recipe.policy.device),
                recipe=recipe,
                rank=rank,
                recording=recording,
            )
            for rank in range(recipe.policy.ranks)
        }

    def start(self, checkpoint: Path | None = None) -> dict[str, Any]:
        """Connects the ranks; returns what rank 0 reports about its start."""
        first = self._actors["policy/0"]
        host = self._cluster.results({"policy/0": first.host.remote()})["policy/0"]
        port = self._cluster.results({"policy/0": first.listen.remote(host)})["policy/0"]
        rendezvous = Rendezvous(host, port, self._recipe.policy.ranks)
        facts: dict[str, Any] = self._call("start", rendezvous, checkpoint)[0]
        return facts

    def log_probs(self, shards: Sequence[Sequence[Shard]]) -> list[list[list[np.ndarray]]]:
        return self._call_each("log_probs", [(part,) for part in shards])

    def update(self, step: int, shards: Sequence[Sequence[Shard]]) -> list[RankUpdate]:
        return self._call_each("update", [(step, part) for part in shards])

    def weights(self) -> Any:
        """A reference to rank 0's weights; they travel to the inference servers without passing through here."""
        references = {name: actor.weights.remote() for name, actor in self._actors.items()}
        return references["policy/0"]

    def sent_weights(self) -> list[Fingerprint]:
        first = self._actors["policy/0"]
        found: list[Fingerprint] = self._cluster.results({"policy/0": first.sent_weights.remote()})["policy/0"]
        return found

    def save(self, folder: Path, step: int) -> None:
        self._call("save", folder, step)

    def close(self) -> None:
        """Lets every rank finish its recording, then stops it; a rank that hangs is not waited for."""
        try:
            calls = {name: actor.close.remote() for name, actor in self._actors.items()}
            self._cluster.results(calls, timeout_s=_CLOSE_S)
        finally:
            for name in self._actors:
                self._cluster.kill(name)

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        return self._call_each(method, [arguments] * len(self._actors))

    def _call_each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        calls = {
            name: getattr(actor, method).remote(*given)
            for (name, actor), given in zip(self._actors.items(), arguments, strict=True)
        }
        return list(self._cluster.results(calls).values())


class RolloutPool:
    """Rollout workers. One that is lost is replaced, and its samples are generated again: random numbers are keyed
    by sample, so the result is the same. `publish` says what the workers ask for generations."""

    def __init__(self, cluster: Cluster, recipe: Recipe, *, on_loss: Callable[[str], None] = _log.warning) -> None:
        self._cluster = cluster
        self._recipe = recipe
        self._on_loss = on_loss
        self._restarts: dict[str, int] = {}
        self._samplers: list[Sampling] = []
        self._workers = {
            f"rollout/{number}": self._spawn_worker(number) for number in range(recipe.rollout_worker.workers)
        }

    def publish(self, weights: Any, policy_version: int) -> None:
        """Here `weights` are a service's frozen ones: something that generates."""
        self._samplers = [weights]

    def held_weights(self) -> list[list[Fingerprint]]:
        """A service does not show what it holds."""
        return []

    def collect(self, step: int, tasks: Sequence[RolloutTask]) -> list[Trajectory]:
        made: dict[int, list[Trajectory]] = {}
        chunks = dict(enumerate(self._chunks(tasks)))
        while chunks:
            made |= self._dispatch(step, chunks)
            chunks = {number: chunk for number, chunk in chunks.items() if number not in made}
        return [trajectory for number in sorted(made) for trajectory in made[number]]

    def close(self) -> None:
        for name in self._workers:
            self._cluster.kill(name)

    def _chunks(self, tasks: Sequence[RolloutTask]) -> list[Sequence[RolloutTask]]:
        """Inference batches by sample order: one per worker, or several that go to whichever worker is free."""
        count = len(self._workers) * (1 if self._recipe.deterministic else _CHUNKS_PER_WORKER)
        size = -(-len(tasks) // count)
        return [tasks[start : start + size] for start in range(0, len(tasks), size)]

    def _dispatch(self, step: int, chunks: dict[int, Sequence[RolloutTask]]) -> dict[int, list[Trajectory]]:
        """Gives chunks to workers until all are done or one is lost; returns what was done by then."""
        import ray

        queue, idle = list(chunks), list(self._workers)
        running: dict[Any, tuple[int, str]] = {}
        made: dict[int, list[Trajectory]] = {}
        while queue or running:
            while queue and idle:
                number, worker = queue.pop(0), idle.pop(0)
                sampler = self._samplers[number % len(self._samplers)]
                running[self._workers[worker].run.remote(step, chunks[number], sampler)] = (number, worker)
            (call,), _ = ray.wait(list(running), num_returns=1)
            number, worker = running.pop(call)
            try:
                made[number] = self._cluster.results({worker: call})[worker]
            except WorkerLostError as lost:
                self._replace(lost)
                return made
            idle.append(worker)
        return made

    def _replace(self, lost: WorkerLostError) -> None:
        """Replaces a lost worker, up to the allowed number of restarts."""
        name = lost.worker
        self._restarts[name] = self._restarts.get(name, 0) + 1
        if self._restarts[name] > self._recipe.cluster.max_restarts:
            raise lost
        self._on_loss(f"{lost.message}; replaced ({self._restarts[name]} of {self._recipe.cluster.max_restarts})")
        self._cluster.kill(name)
        self._respawn(name, int(name.rpartition("/")[2]))

    def _respawn(self, name: str, number: int) -> None:
        self._workers[name] = self._spawn_worker(number)

    def _spawn_worker(self, number: int) -> Any:
        return self._cluster.spawn(f"rollout/{number}", RolloutActor, recipe=self._recipe, number=number)


class RayRollouts(RolloutPool):
    """Rollout workers with the run's own inference servers, which are replaced like the workers."""

    def __init__(self, cluster: Cluster, recipe: Recipe, *, on_loss: Callable[[str], None] = _log.warning) -> None:
        super().__init__(cluster, recipe, on_loss=on_loss)
        self._weights: Any = None
        self._policy_version = 0
        self._servers = {
            f"inference/{number}": self._spawn_server(number) for number in range(recipe.inference.servers)
        }

    def publish(self, weights: Any, policy_version: int) -> None:
        self._weights, self._policy_version = weights, policy_version
        for name in list(self._servers):
            try:
                self._load_weights(name)
            except WorkerLostError as lost:
                self._replace(lost)
        self._samplers = [ActorSampling(name, actor) for name, actor in self._servers.items()]

    def held_weights(self) -> list[list[Fingerprint]]:
        return [self._held_by(name) for name in list(self._servers)]

    def _held_by(self, name: str) -> list[Fingerprint]:
        """What a server holds; one that is lost is replaced, and its successor asked."""
        try:
            found: list[Fingerprint] = self._cluster.results({name: self._servers[name].held_weights.remote()})[name]
        except WorkerLostError as lost:
            self._replace(lost)
            return self._held_by(name)
        return found

    def close(self) -> None:
        super().close()
        for name in self._servers:
            self._cluster.kill(name)

    def _respawn(self, name: str, number: int) -> None:
        if name in self._workers:
            super()._respawn(name, number)
            return
        self._servers[name] = self._spawn_server(number)
        self._load_weights(name)
        self._samplers = [ActorSampling(name, actor) for name, actor in self._servers.items()]

    def _load_weights(self, name: str) -> None:
        call = self._servers[name].load_weights.remote(self._weights, self._policy_version)
        self._cluster.results({name: call})

    def _spawn_server(self, number: int) -> Any:
        share = gpu_share(self._cluster, self._recipe, self._recipe.inference.device)
        return self._cluster.spawn(
            f"inference/{number}", InferenceServer, gpus=share, recipe=self._recipe, number=number
        )


class ServedRolloutPool(RolloutPool):
    """Rollout workers that ask the user's inference servers (`inference.addresses`); they are sent new weights."""

    def publish(self, weights: Any, policy_version: int) -> None:
        import ray

        servers = samplers(self._recipe)
        held = ray.get(weights)
        for server in servers:
            server.load_weights(held, policy_version)
        self._samplers = list(servers)

    def held_weights(self) -> list[list[Fingerprint]]:
        held = [server.held_weights() for server in samplers(self._recipe)]
        return held if all(held) else []


def samplers(recipe: Recipe) -> list[HttpSampling]:
    """The user's inference servers."""
    settings = recipe.inference
    eos_id = load_tokenizer(recipe.model.path).eos_id
    return [
        HttpSampling(address.removeprefix("http://").rstrip("/"), settings.max_new_tokens, settings.temperature, eos_id)
        for address in settings.addresses
    ]


def gpu_share(cluster: Cluster, recipe: Recipe, device: str) -> float:
    """How much of a GPU each rank and inference server gets: one, or an equal part when there are fewer."""
    if device == "cpu":
        return 0.0
    return min(1.0, cluster.gpus() / (recipe.policy.ranks + recipe.inference.servers))
