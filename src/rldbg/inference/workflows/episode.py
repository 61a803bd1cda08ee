"""One run of a workflow on one row: the requests it made, and its timeline. Known to all code that runs for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from rldbg.core import SampleId, UsageError
from rldbg.inference.workflows.completions import Completion, Trained, rows_of_answers
from rldbg.inference.workflows.data import DataRow, EpisodeSpec
from rldbg.inference.workflows.exchanges import ExchangeLog, Exchanges, completion_data, completion_of
from rldbg.inference.workflows.request_formats import TOKEN_IDS, openai_answers
from rldbg.inference.workflows.servers import Servers
from rldbg.inference.workflows.settings import GenerationSettings, request_seed
from rldbg.inference.workflows.timeline import EpisodeSpan, Timeline

_current: ContextVar[Episode] = ContextVar("episode")


class Episode:
    """What an adapter works with. Requests are numbered, seeded, traced and kept, in the order they were made."""

    def __init__(
        self,
        spec: EpisodeSpec,
        *,
        servers: Servers,
        settings: GenerationSettings,
        seed: int | None,
        tokenizer: Any = None,
        exchanges: Exchanges | None = None,
    ) -> None:
        self.spec = spec
        self._exchanges = exchanges or Exchanges(ExchangeLog())
        self.fault = self._exchanges.fault(str(spec.sample))
        self.settings = settings
        self.timeline = Timeline(str(spec.sample))
        self.servers = servers
        self._answers: dict[int, list[Completion]] = {}
        self._seed = seed
        self._tokenizer = tokenizer
        self._requests = 0

    @property
    def row(self) -> DataRow:
        return self.spec.row

    @property
    def sample(self) -> SampleId:
        return self.spec.sample

    @contextmanager
    def active(self) -> Iterator[None]:
        """While the user's code runs: `span` and breakpoints find the episode."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @property
    def answers(self) -> list[Completion]:
        """Every answer, in the order of the requests."""
        return [answer for number in sorted(self._answers) for answer in self._answers[number]]

    def rows(self, reward: float | Mapping[str, float]) -> list[Trained]:
        """The rows that the requests make."""
        if not self.answers:
            raise UsageError(
                "the workflow gave a reward but made no request: there are no tokens to train on",
                "call generate (or the OpenAI client with base_url), or return the tokens",
            )
        return rows_of_answers(self.answers, reward)

    async def generate(self, prompt: Any, settings: GenerationSettings | None = None, *, rid: str = "") -> Completion:
        """One request: a text, token ids, or chat messages."""
        number, seed = self.next_request()
        chosen = settings or self.settings
        asked = list(prompt) if is_chat(prompt) else self._encoded(prompt)

        async def ask() -> dict[str, Any]:
            if is_chat(prompt):
                return completion_data(await self._chat(prompt, chosen, seed))
            return completion_data(await self.servers.generate(asked, chosen, seed=seed, rid=rid))

        with self.timeline.span("request", f"request {number}") as span:
            data = await self.exchange(number, {"prompt": asked, "settings": asdict(chosen)}, ask)
            answer = completion_of(data)
            if self.fault is not None:
                answer = self.fault.completion(number, answer)
            self.keep(number, [answer], span)
        return answer

    async def exchange(self, number: int, request: Any, ask: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """The answer to a request, from wherever this rollout takes its answers."""
        if self.fault is not None:
            self.fault.before(number)
        return await self._exchanges.answer(str(self.sample), number, request, ask)

    @property
    def requests(self) -> int:
        return self._requests

    def next_request(self) -> tuple[int, int | None]:
        """The number and the seed of the next request."""
        number, self._requests = self._requests, self._requests + 1
        return number, request_seed(self._seed, str(self.sample), number)

    def keep(self, number: int, answers: Sequence[Completion], span: EpisodeSpan) -> None:
        self._answers[number] = list(answers)
        span.details |= {
            "prompt_tokens": len(answers[0].prompt_tokens) if answers else 0,
            "tokens": sum(len(answer.tokens) for answer in answers),
            "finish_reason": answers[0].finish_reason if answers else "",
            "text": answers[0].text[:500] if answers else "",
        }

    async def _chat(self, messages: Any, settings: GenerationSettings, seed: int | None) -> Completion:
        if self._tokenizer is not None:
            tokens = self._tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
            return await self.servers.generate(as_tokens(tokens), settings, seed=seed)
        body = await self.servers.chat(
            settings.for_openai(seed) | {"messages": list(messages), "logprobs": True} | TOKEN_IDS
        )
        return openai_answers(body)[0]

    def _encoded(self, prompt: Any) -> str | Sequence[int]:
        if isinstance(prompt, str):
            return as_tokens(self._tokenizer.encode(prompt)) if self._tokenizer is not None else prompt
        return as_tokens(prompt)


def is_chat(prompt: Any) -> bool:
    return isinstance(prompt, list | tuple) and bool(prompt) and all(isinstance(item, Mapping) for item in prompt)


def as_tokens(prompt: Any) -> list[int]:
    """Token ids from a list, an array or a tensor of one row; a tokenizer's own result too."""
    if isinstance(prompt, Mapping) and "input_ids" in prompt:
        prompt = prompt["input_ids"]
    values = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if isinstance(values, list | tuple) and len(values) == 1 and isinstance(values[0], list | tuple):
        values = values[0]
    whole = isinstance(values, list | tuple) and all(isinstance(v, int) and not isinstance(v, bool) for v in values)
    if not whole or not values:
        raise UsageError(
            f"a prompt is a string, token ids or chat messages, not {prompt!r:.120}", "pass one of these to generate"
        )
    return list(values)


@contextmanager
def span(kind: str, name: str, **details: Any) -> Iterator[None]:
    """Puts a tool call, or anything else that takes time, on the timeline of the episode that is running.

    Outside of an episode it does nothing, so that the same code runs in training.
    """
    episode = _current.get(None)
    if episode is None:
        yield
        return
    with episode.timeline.span(kind, name, **details):
        yield
