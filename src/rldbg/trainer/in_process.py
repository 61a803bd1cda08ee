"""The whole loop in one process, without Ray: ranks are threads, one rollout worker, one sampler.

For debuggers, tests and the bug zoo."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rldbg.replay import Trajectory
from rldbg.trainer.observer import RecordingPlan
from rldbg.trainer.policy import PolicyWorker, RankUpdate
from rldbg.trainer.rollout import RolloutTask, make_rollout_worker
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import Shard
from rldbg.weights import Fingerprint

Result = TypeVar("Result")


class InProcessPolicy:
    """A policy whose ranks are threads of this process; a single rank stays in the caller's thread."""

    def __init__(self, recipe: Recipe, recording: RecordingPlan) -> None:
        ranks = recipe.policy.ranks
        self._meeting = ThreadMeeting(ranks)
        self._workers = [PolicyWorker(recipe=recipe, rank=rank, recording=recording) for rank in range(ranks)]

    def start(self, checkpoint: Path | None = None) -> dict[str, Any]:
        return self._each(lambda worker, _: worker.start(self._meeting, checkpoint))[0]

    def log_probs(self, shards: Sequence[Sequence[Shard]]) -> list[list[list[np.ndarray]]]:
        return self._each(lambda worker, rank: worker.log_probs(shards[rank]))

    def update(self, step: int, shards: Sequence[Sequence[Shard]]) -> list[RankUpdate]:
        return self._each(lambda worker, rank: worker.update(step, shards[rank]))

    def weights(self) -> Any:
        return self._workers[0].weights()

    def sent_weights(self) -> list[Fingerprint]:
        return self._workers[0].sent_weights()

    def save(self, folder: Path, step: int) -> None:
        self._each(lambda worker, _: worker.save(folder, step))

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _each(self, call: Callable[[PolicyWorker, int], Result]) -> list[Result]:
        if len(self._workers) == 1:
            return [call(self._workers[0], 0)]
        return self._meeting.each([partial(call, worker, rank) for rank, worker in enumerate(self._workers)])


class InProcessRollouts:
    """A rollout worker of this process per sampler: replicas of its own, a server, or what a service publishes."""

    def __init__(self, recipe: Recipe, samplers: Sequence[Any] = ()) -> None:
        self._recipe = recipe
        self._samplers = list(samplers)

    def collect(self, step: int, tasks: Sequence[RolloutTask]) -> list[Trajectory]:
        size = -(-len(tasks) // len(self._samplers))
        made = []
        for number, sampler in enumerate(self._samplers):
            worker = make_rollout_worker(self._recipe, sampler.generate, replica=number)
            made += worker.run(step, tasks[number * size : (number + 1) * size])
        return made

    def publish(self, weights: Any, policy_version: int) -> None:
        if hasattr(weights, "generate"):  # weights of a service are frozen there and sampled by themselves
            self._samplers = [weights]
            return
        for sampler in self._samplers:
            sampler.load_weights(weights, policy_version)

    def held_weights(self) -> list[list[Fingerprint]]:
        held = [sampler.held_weights() for sampler in self._samplers if hasattr(sampler, "held_weights")]
        return held if all(held) else []

    def close(self) -> None:
        """Nothing outlives the process, and servers are not ours."""


# Every exchange of tensors is a barrier of all ranks: each stores its tensor, all wait, each reads what it needs, and
# all wait again before the shared list is reused.


class ThreadMeeting:
    """The shared state of the ranks of one process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.table: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)

    def join(self, rank: int, _device: Any) -> ThreadRanks:
        return ThreadRanks(self, rank)

    def each(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Runs one call per rank at the same time; when one fails, the others stop waiting and its error is raised."""
        waiting: list[Future[Result]] = [Future() for _ in calls]
        try:
            for call, item in zip(calls, waiting, strict=True):
                # Ctrl-C does not wait for what a rank computes: its thread ends with the process.
                threading.Thread(target=self._guarded, args=(call, item), daemon=True).start()
            errors = [error for item in waiting if (error := item.exception()) is not None]
        except BaseException:
            self.barrier.abort()
            raise
        if errors:
            self.barrier.reset()
            raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        return [item.result() for item in waiting]

    def _guarded(self, call: Callable[[], Result], answer: Future[Result]) -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self.barrier.abort()
            answer.set_exception(error)


class ThreadRanks:
    """One rank's access to the exchange."""

    def __init__(self, meeting: ThreadMeeting, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank

    @property
    def size(self) -> int:
        return self._meeting.size

    def gather(self, tensor: Any) -> list[Any]:
        """Every rank's tensor, in rank order."""
        self._meeting.table[self._rank] = tensor
        self._meeting.barrier.wait()
        taken = [item.clone() for item in self._meeting.table]
        self._meeting.barrier.wait()
        return taken

    def add_up(self, tensor: Any) -> None:
        parts = self.gather(tensor)
        tensor.copy_(sum(parts[1:], start=parts[0]))

    def take_from_first(self, tensor: Any) -> None:
        tensor.copy_(self.gather(tensor)[0])

    def leave(self) -> None:
        """Threads hold nothing for each other."""
