"""Answers in parts, whole or as they come: the same for every protocol."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from rldbg.inference.conversation.answer import Answer, AnswerPart
from rldbg.inference.conversation.parsing import AnswerParser, Reading, parse_answer
from rldbg.inference.embedded.text import GrowingText
from rldbg.inference.generation import Delta, Finish, GenerationJob, Likeliest, Outcome, PendingGeneration, Text

# Text alone: neither calls nor reasoning are looked for.
_ANYTHING = Reading()


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """Some of an answer, or all of it; the last piece of an answer has its outcome."""

    parts: Sequence[AnswerPart]
    tokens: Sequence[int]
    logprobs: Sequence[float]
    top: Sequence[Likeliest]
    outcome: Outcome | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if part.kind == "text")


@dataclass(frozen=True, slots=True)
class Reader:
    """How answers become parts: the tokenizer, what to look for, and whether special tokens and stop texts are kept."""

    text: Text
    reading: Reading = _ANYTHING
    skip_special: bool = True
    keep_stop: bool = False
    # Text alone is wanted: recorded parts of an answer are not.
    raw: bool = False

    def whole(self, job: GenerationJob, outcome: Outcome) -> Answer:
        """The parts of a finished answer: as they were recorded, or else as they are read from the text."""
        if outcome.answer is not None and not self.raw:
            return outcome.answer
        written = outcome.text
        if written is None or outcome.answer is not None:
            written = _AnswerText(self).add(Delta(outcome.tokens, ()), whole=True) or written or ""
        return parse_answer(self._cut(written, outcome.finish), self.reading, self._names(job))

    async def pieces(self, answer: PendingGeneration) -> AsyncIterator[AnswerPiece]:
        """An answer as it comes. A beginning of a stop text is held back; stop texts are never cut off the tokens."""
        source, parser = _AnswerText(self), AnswerParser(self.reading, self._names(answer.job))
        held, sent = "", 0
        async for delta in answer.deltas():
            sent += len(delta.tokens)
            if delta.text is None or not await self._is_recorded(answer):
                held += source.add(delta)
            ready, held = _without_stop_beginning(held, answer.job.settings.stop_texts)
            yield AnswerPiece(parser.feed(ready), delta.tokens, delta.logprobs, delta.top)
        outcome = await answer.outcome()
        left = outcome.tokens[sent:]
        held += source.add(Delta(left, ()), whole=True)
        parts = [*parser.feed(self._cut(held, outcome.finish)), *parser.finish()]
        if outcome.answer is not None:
            parts = self.whole(answer.job, outcome).parts()
        yield AnswerPiece(parts, left, outcome.logprobs[sent:], outcome.top[sent:], outcome)

    async def _is_recorded(self, answer: PendingGeneration) -> bool:
        """Whether the parts of the answer are known; then it is there as a whole."""
        return answer.done and (await answer.outcome()).answer is not None

    def _cut(self, text: str, finish: Finish) -> str:
        if isinstance(finish.matched, str) and not self.keep_stop and finish.matched in text:
            return text[: text.index(finish.matched)]
        return text

    def _names(self, job: GenerationJob) -> "_CallNames":
        base = blake2b(f"{job.seed}\0{job.prompt}\0{job.prompt_text}".encode(), digest_size=16).hexdigest()
        return _CallNames(base, short=self.reading.family is not None and self.reading.family.name == "mistral")


@dataclass(frozen=True, slots=True)
class _CallNames:
    """Names for calls: the same seed and prompt give the same. Mistral's templates take nine characters only."""

    base: str
    short: bool

    def __call__(self, number: int) -> str:
        name = blake2b(f"{self.base}\0{number}".encode(), digest_size=12).hexdigest()
        return name[:9] if self.short else f"call_{name}"


class _AnswerText:
    """Text out of tokens; special tokens are dropped, except those that enclose reasoning or calls."""

    def __init__(self, reader: Reader) -> None:
        text, reading = reader.text, reader.reading
        known = "\0".join((*reading.marks, *(reading.family.form.texts if reading.family else ())))
        marks = {id for mark, id in text.added.items() if mark in known}
        plain = reader.skip_special and not marks & text.special
        self._dropped = frozenset() if plain or not reader.skip_special else text.special - marks
        self._growing = GrowingText(text, skip_special=plain)

    def add(self, delta: Delta, *, whole: bool = False) -> str:
        """What some tokens add; with `whole` nothing comes after them."""
        added = delta.text if delta.text is not None else self._growing.add(self._kept(delta.tokens))
        return added + (self._growing.rest() if whole else "")

    def _kept(self, tokens: Iterable[int]) -> list[int]:
        return [token for token in tokens if token not in self._dropped]


def _without_stop_beginning(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """What may be sent now, and what could still become a stop text."""
    longest = max((len(stop) for stop in stops), default=0)
    for size in range(min(len(text), longest), 0, -1):
        if any(stop.startswith(text[-size:]) or text[-size:].startswith(stop) for stop in stops):
            return text[:-size], text[-size:]
    return text, ""
