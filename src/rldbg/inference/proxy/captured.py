"""What the proxy keeps of an exchange."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rldbg.inference.conversation.answer import Answer

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Captured:
    """One generation as it passed by. A prompt is known by its tokens, by its text, or by both.

    `answer` has the reasoning and the tool calls where the protocol tells them apart from the text. `stop` is the token
    or text that ended it, `seed` what keyed its random numbers where the request said so.
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


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """`wanted` are the fields to add to a request so that the answer has token ids and log probs."""

    wanted: Body
    read: Callable[[Body, Any], Iterator[Captured]]
    join: Callable[[Sequence[Body]], Any]

    def completed(self, request: Body) -> Body:
        """The request with what is wanted beside; the same object if nothing is missing."""
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
