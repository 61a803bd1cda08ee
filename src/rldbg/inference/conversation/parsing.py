"""An answer's text taken apart as it grows: reasoning, text, tool calls.

Text that could still become a marker is held back, and a call is given when it is complete. What looks like a call and
cannot be read stays text: nothing of an answer is lost.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rldbg.inference.conversation.answer import Answer, AnswerPart, PartKind, ToolCall
from rldbg.inference.conversation.families import Schemas, TemplateFamily


@dataclass(frozen=True, slots=True)
class Reading:
    """What to look for in an answer. `family` None leaves calls in the text; `in_reasoning` says that the prompt has
    opened the reasoning already. Unless there may be `several_calls`, those after the first are left out."""

    family: TemplateFamily | None = None
    schemas: Schemas | None = None
    reasoning: tuple[str, str] | None = None
    in_reasoning: bool = False
    several_calls: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """Every text that is not part of what it encloses."""
        calls = (*self.family.opens, *filter(None, [self.family.closes])) if self.family else ()
        return (*calls, *(self.reasoning or ()))


class AnswerParser:
    """Takes pieces of text, gives parts. `call_id` names the calls by their number."""

    def __init__(self, reading: Reading, call_id: Callable[[int], str]) -> None:
        self._reading = reading
        self._call_id = call_id
        self._state: PartKind = "reasoning" if reading.in_reasoning else "text"
        self._buffer = ""
        self._calls = 0
        self._blank = True
        self._trims = reading.in_reasoning

    def feed(self, text: str) -> list[AnswerPart]:
        self._buffer += text
        return list(self._steps())

    def finish(self) -> list[AnswerPart]:
        """What is left when the answer has ended."""
        parts = list(self._steps())
        rest, self._buffer = self._buffer, ""
        if self._state == "call":
            parts += self._read(rest)
        elif rest.strip() or (rest and not self._calls and not self._trims):
            parts.append(AnswerPart(self._state, rest.lstrip() if self._trims else rest))
        return parts

    def _steps(self) -> Iterator[AnswerPart]:
        before = None
        while self._buffer and self._state != before:
            before = self._state
            yield from self._step()

    def _step(self) -> Iterator[AnswerPart]:
        if self._state == "call":
            family = self._reading.family
            assert family is not None
            end = self._buffer.find(family.closes) if family.closes else -1
            if family.closes and end >= 0:
                end += len(family.closes)
                region, self._buffer = self._buffer[:end], self._buffer[end:]
                self._state = "text"
                yield from self._read(region)
            return
        marks = self._next_marks()
        place, mark = min(((found, mark) for mark in marks if (found := self._place(mark)) >= 0), default=(-1, ""))
        if place < 0:
            yield from self._given(self._ready(marks))
            return
        yield from self._given(place, trimmed=True)
        self._enter(mark)

    def _next_marks(self) -> Sequence[str]:
        reading = self._reading
        if self._state == "reasoning":
            return (reading.reasoning[1],) if reading.reasoning else ()
        opens = (reading.reasoning[0],) if reading.reasoning and self._blank and not self._calls else ()
        calls = reading.family.opens if reading.family else ()
        if reading.family and reading.family.at_start and not self._blank:
            calls = ()
        return (*opens, *calls)

    def _place(self, mark: str) -> int:
        """Where a mark is; one that is only valid at the start counts nowhere else."""
        family = self._reading.family
        if self._state == "text" and family and family.at_start and mark in family.opens:
            bare = len(self._buffer) - len(self._buffer.lstrip())
            return bare if self._buffer.startswith(mark, bare) else -1
        return self._buffer.find(mark)

    def _enter(self, mark: str) -> None:
        reading = self._reading
        if self._state == "reasoning" or (reading.reasoning and mark == reading.reasoning[0]):
            self._state = "text" if self._state == "reasoning" else "reasoning"
            self._buffer = self._buffer[len(mark) :]
            self._blank = self._trims = True
        else:
            self._state = "call"

    def _ready(self, marks: Sequence[str]) -> int:
        """How much of the buffer can no longer be the beginning of a mark, or the blank before one."""
        longest = min(len(self._buffer), max((len(mark) for mark in marks), default=0))
        held = next(
            (size for size in range(longest, 0, -1) if any(mark.startswith(self._buffer[-size:]) for mark in marks)), 0
        )
        end = len(self._buffer) - held
        return len(self._buffer[:end].rstrip()) if marks else end

    def _given(self, end: int, *, trimmed: bool = False) -> Iterator[AnswerPart]:
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        text = text.rstrip() if trimmed else text
        text = text.lstrip() if self._trims else text
        if text:
            self._trims = False
            self._blank = self._blank and not text.strip()
            yield AnswerPart(self._state, text)

    def _read(self, region: str) -> list[AnswerPart]:
        family = self._reading.family
        assert family is not None
        try:
            calls = family.read(region, self._reading.schemas or {})
        except (ValueError, KeyError, TypeError, StopIteration, AttributeError, RecursionError):
            calls = []
        if not calls:
            self._blank = False
            return [AnswerPart("text", region)]
        parts = []
        for name, arguments in calls:
            if self._calls and not self._reading.several_calls:
                break
            parts.append(AnswerPart("call", call=ToolCall(self._call_id(self._calls), name, arguments)))
            self._calls += 1
        return parts


def parse_answer(text: str, reading: Reading, call_id: Callable[[int], str]) -> Answer:
    """A whole answer at once."""
    parser = AnswerParser(reading, call_id)
    return Answer.of_parts([*parser.feed(text), *parser.finish()])
