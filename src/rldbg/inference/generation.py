"""The request and result types between protocols and backends: one prompt to continue, and its outcome.

Log probs come in the modes of `rldbg.algorithms.token_sampling`, and every answer says which one it used.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rldbg.algorithms import LogprobMode, TopTokens
from rldbg.inference.conversation.answer import Answer
from rldbg.inference.request_error import RequestError

# What a request gives a chat template in addition to messages and tools.
Options = Mapping[str, Any] | None
FinishKind = Literal["stop", "length", "abort"]
# The likeliest tokens at one place, best first; a token is its text where a recording has no id of it.
Likeliest = Sequence[tuple[int | str, float]]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must be. `value` is JSON text for a schema and for choices, else the expression or grammar itself.

    `lark` is a grammar in the language of llguidance, `grammar` one in that or in GBNF.
    """

    kind: Literal["json_schema", "regex", "choice", "grammar", "lark"]
    value: str


@dataclass(frozen=True, slots=True)
class Penalties:
    """What lowers the logits of tokens that are there already: those of the answer, for `repetition` of the prompt
    too."""

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How to continue. `top_k` 0 and `top_p` 1 leave the distribution whole; so do the fields after `logprob_mode`."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprob_mode: LogprobMode = "temperature"
    penalties: Penalties | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None

    @property
    def adjusts(self) -> bool:
        return bool(self.penalties or self.logit_bias or self.allowed_token_ids or self.constraint)


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One prompt to continue once. `seed` keys the random numbers, `position` counts those drawn in earlier turns.

    `prompt_from` asks for the log probs of the prompt's tokens from that place on; None asks for none.
    """

    id: str
    prompt: tuple[int, ...]
    settings: SamplingSettings
    seed: int
    position: int = 0
    top_logprobs: int = 0
    prompt_from: int | None = None
    prompt_text: str | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """Why it ended. `matched` is the stop token or text."""

    kind: FinishKind
    matched: int | str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """Tokens that came since the last one; `text` is there if it is known without the tokenizer."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    top: Sequence[Likeliest] = ()
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished continuation. `versions` says which weights made each token, `prompt_ranks` the place of each prompt
    token among all by likelihood, 1 for the likeliest. `prompt` is there if the job has it as text only, `text` and
    `answer` if they are known without the tokenizer."""

    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: Finish
    weight_version: str
    logprob_mode: LogprobMode = "temperature"
    top: Sequence[Likeliest] = ()
    prompt_logprobs: list[float | None] = field(default_factory=list)
    prompt_top: list[TopTokens] = field(default_factory=list)
    prompt_ranks: list[int | None] = field(default_factory=list)
    text: str | None = None
    answer: Answer | None = None
    prompt: tuple[int, ...] = ()


class PendingGeneration:
    """A running continuation. It belongs to the event loop that created it; the backend fills it from there."""

    def __init__(self, job: GenerationJob) -> None:
        self.job = job
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def push(self, delta: Delta) -> None:
        self._deltas.put_nowait(delta)

    def finish(self, outcome: Outcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)
            self._deltas.put_nowait(None)

    def fail(self, error: RequestError) -> None:
        if not self._outcome.done():
            self._outcome.set_exception(error)
            self._deltas.put_nowait(None)

    @property
    def done(self) -> bool:
        return self._outcome.done()

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self._outcome)

    async def deltas(self) -> AsyncIterator[Delta]:
        """Each part as it comes; ends when the outcome is there."""
        while (delta := await self._deltas.get()) is not None:
            yield delta


# How a conversation's prompt ends: ready for an assistant's turn, within the last message, or after it.
Ending = Literal["answer", "continue", "none"]


class Text(Protocol):
    """What a server needs of a tokenizer. `template` is the text of its chat template, "" if there is none; `added` are
    the tokens beside its vocabulary by their text, and `special` those of them that are not part of a text."""

    @property
    def template(self) -> str: ...

    @property
    def added(self) -> Mapping[str, int]: ...

    @property
    def special(self) -> frozenset[int]: ...

    def constrained(self, size: int, end_ids: Sequence[int]) -> Any:
        """The tokenizer as llguidance takes it, for a vocabulary of this size."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str: ...

    def chat(
        self,
        messages: Sequence[object],
        tools: Sequence[object] | None,
        options: Options = None,
        ending: Ending = "answer",
    ) -> list[int]:
        """The prompt of a conversation; `options` are for its template."""
