"""What the proxy keeps of an exchange."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rldbg.inference.conversation.answer import Answer
from rldbg.inference.generation import Likeliest

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """One generation as it passed by. A prompt is known by its tokens, by its text, or by both.

    `answer` has the reasoning and the tool calls where the protocol tells them apart from the text. `stop` is the token
    or text that ended it, `seed` what keyed its random numbers where the request said so, `top` the likeliest tokens at
    each place where the request asked for them.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    logprobs: Sequence[float | None]
    prompt_text: str | None = None
    text: str | None = None
    finish: str | None = None
    version: str | None = None
    answer: Answer | None = None
    stop: int | str | None = None
    seed: int | None = None
    top: Sequence[Likeliest] = ()


def token_named(name: str) -> int | str:
    """A token's id out of a name like token_id:42, else its text."""
    label, _, number = name.partition(":")
    return int(number) if label == "token_id" and number.isdecimal() else name


def likeliest(entries: Sequence[Body]) -> list[Likeliest]:
    """The most likely tokens, from the entries that OpenAI's protocols have for each token of an answer."""
    return [
        [(token_named(other["token"]), other["logprob"]) for other in entry.get("top_logprobs") or ()]
        for entry in entries
    ]


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """`wanted` are the fields to add to a request so that the answer has token ids and log probs."""

    wanted: Body
    read: Callable[[Body, Any], Iterator[Captured]]
    join: Callable[[Sequence[Body]], Any]

    def completed(self, request: Body) -> Body:
        """The request with the wanted fields added; the same object if nothing is missing."""
        return _completed(request, self.wanted)


def _completed(request: Body, wanted: Body) -> Body:
    missing = {name: value for name, value in wanted.items() if request.get(name) in (None, False)}
    for name, value in wanted.items():
        inner = request.get(name)
        if isinstance(value, Mapping) and isinstance(inner, Mapping):
            whole = _completed(inner, value)
            if whole is not inner:
                missing[name] = whole
    return {**request, **missing} if missing else request
