"""The embedded backend: a scheduler in a thread of its own, driven by calls that the event loop posts to it.

Only the thread touches the model, the cache and the sequences. Its results go back to the loop in one call per
iteration.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rldbg.inference.backend import BackendStatus, ModelCard, PauseMode, WeightVersion
from rldbg.inference.embedded.constraints import Constraints
from rldbg.inference.embedded.forward import ForwardPasses
from rldbg.inference.embedded.scheduler import Limits, Scheduler
from rldbg.inference.embedded.sequence import Sequence
from rldbg.inference.embedded.weights import WeightFiles, WeightTensors, load_weights
from rldbg.inference.generation import Delta, GenerationJob, Outcome, PendingGeneration
from rldbg.inference.request_error import RequestError
from rldbg.weights import Fingerprint, fingerprints

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class EmbeddedBackend:
    """Continuous batching over a transformers model. Make it inside the event loop that will use it."""

    def __init__(self, model: Any, card: ModelCard, *, pad_id: int, limits: Limits | None = None) -> None:
        self._card = card
        self._model = model
        self._passes = ForwardPasses(model, pad_id=pad_id)
        self._scheduler = Scheduler(self._passes, card, limits or Limits())
        self._constraints = Constraints(card)
        self._paused: PauseMode | None = None
        self._finished = 0
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="rldbg-engine", daemon=True)
        self._thread.start()

    @property
    def card(self) -> ModelCard:
        return self._card

    def submit(self, job: GenerationJob, *, streams: bool = False) -> PendingGeneration:
        room = self._card.max_length - len(job.prompt)
        if not job.prompt:
            raise RequestError("the prompt is empty")
        if room < 0 or (room < 1 and job.settings.max_new_tokens):
            raise RequestError(
                f"the prompt has {len(job.prompt)} tokens, the model takes {self._card.max_length} with the answer"
            )
        settings = job.settings
        self._card.check_tokens(job.prompt)
        self._card.check_tokens([*(token for token, _ in settings.logit_bias), *settings.allowed_token_ids])
        matcher = self._constraints.matcher(settings.constraint) if settings.constraint else None
        ends = frozenset() if settings.ignore_eos else self._card.end_ids
        answer = PendingGeneration(job)
        stop_ids = settings.stop_token_ids | ends
        item = Sequence(job, answer, streams, stop_ids, min(room, settings.max_new_tokens), matcher)
        self._calls.put(lambda: self._scheduler.waiting.append(item))
        return answer

    def abort(self, job_id: str | None, *, with_samples: bool = False) -> None:
        self._calls.put(lambda: self._abort(job_id, with_samples))

    async def pause(self, mode: PauseMode) -> None:
        await self._call(lambda: self._pause(mode))

    async def resume(self) -> None:
        await self._call(self._resume)

    async def load_folder(self, folder: Path, label: str | None) -> WeightVersion:
        return await self._call(lambda: self._load(WeightFiles.of_folder(folder), label, partial=False))

    async def load_file(self, file: Path, label: str | None) -> WeightVersion:
        return await self._call(lambda: self._load(WeightFiles.of_file(file), label, partial=True))

    async def load_tensors(self, tensors: Mapping[str, Any], label: str | None) -> WeightVersion:
        return await self._call(lambda: self._load(WeightTensors(tensors), label, partial=True))

    async def name_version(self, label: str) -> WeightVersion:
        return await self._call(lambda: self._name(label))

    async def fingerprints(self) -> list[Fingerprint]:
        return await self._call(lambda: fingerprints(self._model.state_dict()))

    def status(self) -> BackendStatus:
        scheduler = self._scheduler
        return BackendStatus(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + self._calls.qsize(),
            paused=self._paused is not None,
            version=scheduler.version,
            forward_calls=self._passes.calls,
            generated_tokens=scheduler.generated_tokens,
            finished_requests=self._finished,
            healthy=self._thread.is_alive(),
        )

    def summary(self) -> Mapping[str, Any]:
        return self.status().to_dict()

    def report(self) -> Mapping[str, Any] | None:
        return None

    async def close(self) -> None:
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join)

    # From here on everything runs in the engine's thread.

    def _run(self) -> None:
        import torch

        with torch.inference_mode():
            while self._take_calls():
                if self._paused is None and self._scheduler.busy:
                    self._iterate()
        self._abort(None)

    def _take_calls(self) -> bool:
        """Runs posted calls, and waits for one if nothing else is to do; False when the engine shall end."""
        while True:
            idle = self._paused is not None or not self._scheduler.busy
            try:
                call = self._calls.get(block=idle)
            except queue.Empty:
                return True
            if call is None:
                return False
            call()

    def _iterate(self) -> None:
        try:
            touched = self._scheduler.step()
        except Exception as error:  # noqa: BLE001 - what one batch meets must not end the server
            _log.exception("a forward pass failed")
            told = RequestError(f"{type(error).__name__}: {error}", 500)
            dropped = self._scheduler.drop()
            self._post([(item.answer, told) for item in dropped if item.finish is None])
            # Of a request that was admitted in this step, the first pass may have been the last.
            touched = [item for item in dropped if item.finish is not None]
        self._tell(touched)

    def _tell(self, touched: list[Sequence]) -> None:
        news: list[tuple[PendingGeneration, Delta | Outcome | RequestError]] = []
        for item in touched:
            if item.streams and item.sent < len(item.tokens):
                news.append((item.answer, item.delta()))
            if item.finish is not None:
                self._finished += 1
                news.append((item.answer, item.failure or item.outcome(self._scheduler.version.label)))
        self._post(news)

    def _post(self, news: list[tuple[PendingGeneration, Delta | Outcome | RequestError]]) -> None:
        if not news:
            return
        try:
            self._loop.call_soon_threadsafe(_deliver, news)
        except RuntimeError:
            _log.info("%d answers were dropped: the server has stopped", len(news))

    def _abort(self, job_id: str | None, with_samples: bool = False) -> None:
        """`with_samples` means every sample of a request: they are named after it, name-1, name-2 ..."""

        def matches(item: Sequence) -> bool:
            name = item.job.id
            return job_id is None or name == job_id or (with_samples and name.startswith(f"{job_id}-"))

        self._tell(self._scheduler.abort(matches, "aborted"))

    def _pause(self, mode: PauseMode) -> None:
        self._paused = mode
        if mode == "abort":
            self._tell(self._scheduler.abort(lambda _item: True, "generation was paused"))
        elif mode == "retract":
            self._scheduler.retract()

    def _resume(self) -> None:
        self._paused = None

    def _load(self, weights: WeightFiles | WeightTensors, label: str | None, *, partial: bool) -> WeightVersion:
        load_weights(self._model, weights, partial=partial)
        if self._paused != "in_place":
            self._scheduler.retract()
        self._scheduler.version = self._scheduler.version.next(label)
        return self._scheduler.version

    def _name(self, label: str) -> WeightVersion:
        self._scheduler.version = self._scheduler.version.next(label)
        return self._scheduler.version

    async def _call(self, function: Callable[[], _T]) -> _T:
        """Runs a function in the engine's thread, between two iterations."""
        done: asyncio.Future[_T] = self._loop.create_future()

        def call() -> None:
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 - it is raised again where the request is answered
                self._loop.call_soon_threadsafe(_settle, done, None, error)
            else:
                self._loop.call_soon_threadsafe(_settle, done, result, None)

        self._calls.put(call)
        return await done


def _settle(future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _deliver(news: list[tuple[PendingGeneration, Delta | Outcome | RequestError]]) -> None:
    for answer, item in news:
        if isinstance(item, Delta):
            answer.push(item)
        elif isinstance(item, Outcome):
            answer.finish(item)
        else:
            answer.fail(item)
