"""The properties that multi-turn training needs of a template, each tried on every conversation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

from rldbg.templates.conversations import Conversation
from rldbg.templates.rendering import ChatTemplate, RenderingError
from rldbg.templates.tool_calls import tool_call_problems
from rldbg.templates.turns import RenderedConversation, first_difference, render_conversation, starts_with

PropertyVerdict = Literal["holds", "broken", "not tried"]
_CONTEXT = 6


@dataclass(frozen=True, slots=True)
class Property:
    """Whether a property holds; if not, where it broke first and what to do."""

    name: str
    verdict: PropertyVerdict
    why: str = ""
    conversation: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class TemplateReport:
    model: str
    properties: tuple[Property, ...]
    conversations: tuple[RenderedConversation, ...]

    @property
    def broken(self) -> tuple[Property, ...]:
        return tuple(item for item in self.properties if item.verdict == "broken")

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "ok": not self.broken,
            "properties": [asdict(item) for item in self.properties],
            "conversations": [
                {
                    "name": item.conversation.name,
                    "text": item.whole.text,
                    "tokens": list(item.whole.tokens),
                    "texts": list(item.texts),
                    "trained": list(item.trained),
                }
                for item in self.conversations
            ],
        }


@dataclass(frozen=True, slots=True)
class _Question:
    """A property: what breaks it in one conversation, what to do then, and in which conversations it can be tried."""

    name: str
    problems: Callable[[ChatTemplate, RenderedConversation], Iterator[str]]
    fix: str
    applies: Callable[[ChatTemplate, Conversation], bool] = lambda _template, _conversation: True
    not_tried: str = ""


def examine_template(template: ChatTemplate, conversations: Sequence[Conversation], *, model: str) -> TemplateReport:
    """Render every conversation and try every property on it; a refused conversation is reported, not raised."""
    rendered, refused = [], []
    for conversation in conversations:
        try:
            rendered.append(render_conversation(template, conversation))
        except RenderingError as error:
            refused.append(Property("conversation-is-taken", "broken", str(error), conversation.name, _REFUSED))
    answers = [_answer(question, template, rendered) for question in _QUESTIONS] if rendered else []
    return TemplateReport(model, (*refused, *answers), tuple(rendered))


def _answer(question: _Question, template: ChatTemplate, rendered: Sequence[RenderedConversation]) -> Property:
    tried = [item for item in rendered if question.applies(template, item.conversation)]
    for item in tried:
        problem = next(question.problems(template, item), None)
        if problem is not None:
            return Property(question.name, "broken", problem, item.conversation.name, question.fix)
    if not tried:
        return Property(question.name, "not tried", question.not_tried)
    return Property(question.name, "holds")


def _rewritten(template: ChatTemplate, item: RenderedConversation) -> Iterator[str]:
    """Where the tokens of one turn are not the beginning of the next turn's."""
    for earlier, later in pairwise(item.turns):
        if starts_with(later.prompt.tokens, earlier.whole.tokens):
            if not starts_with(later.prompt.tokens, earlier.prompt.tokens):
                place = first_difference(earlier.prompt.tokens, later.prompt.tokens)
                given, history = (_around(template, each.prompt.tokens, place) for each in (earlier, later))
                yield (
                    f"token {place}: the model is given {given} to answer message {earlier.message}, and the history "
                    f"for message {later.message} has {history} there"
                )
            continue
        if later.prompt.text.startswith(earlier.whole.text):
            kind = "the text is the same, but it is split into different tokens"
        else:
            kind = "the template writes the earlier turn differently"
        place = first_difference(earlier.whole.tokens, later.prompt.tokens)
        yield (
            f"token {place} of message {earlier.message} changes once message {later.message} is asked for: {kind}: "
            f"{_around(template, earlier.whole.tokens, place)} becomes {_around(template, later.prompt.tokens, place)}"
        )


def _reencoded(template: ChatTemplate, item: RenderedConversation) -> Iterator[str]:
    parts = {"the conversation": item.whole.tokens}
    parts |= {f"the answer in message {turn.message}": turn.answer for turn in item.turns}
    for what, tokens in parts.items():
        again = template.encode(template.decode(tokens))
        if tuple(again) != tokens:
            place = first_difference(tokens, again)
            before, after = _around(template, tokens, place), _around(template, again, place)
            yield f"token {place} of {what} changes when it is decoded and encoded again: {before} becomes {after}"


def _prompts_differ(template: ChatTemplate, item: RenderedConversation) -> Iterator[str]:
    for turn in item.turns:
        if not turn.is_continued:
            place = first_difference(turn.prompt.tokens, turn.whole.tokens)
            yield (
                f"message {turn.message}: the model is given {_around(template, turn.prompt.tokens, place)}, but the "
                f"complete turn has {_around(template, turn.whole.tokens, place)} there"
            )
    starts = {turn.start for turn in item.turns if turn.prompt.text.startswith(turn.history.text)}
    if len(starts) > 1:
        yield f"assistant turns begin in {len(starts)} ways: {', '.join(repr(start) for start in sorted(starts))}"


def _thinking_dropped(_template: ChatTemplate, item: RenderedConversation) -> Iterator[str]:
    for number in item.conversation.assistant_turns:
        thought = _thought(item.conversation, number)
        if thought and thought not in item.whole.text:
            yield f"the reasoning of message {number} ({thought!r}) is not in the history of later turns"


def _thought(conversation: Conversation, number: int) -> str:
    content = str(conversation.messages[number].get("content") or "")
    inside = content.partition("<think>")[2].partition("</think>")[0]
    return (inside or str(conversation.messages[number].get("reasoning_content") or "")).strip()


def _doubled(template: ChatTemplate, item: RenderedConversation) -> Iterator[str]:
    ends = {"beginning": template.bos_id, "end": template.eos_id}
    ways = {
        "": item.whole.tokens,
        " if encode() adds special tokens": template.encode(item.whole.text, add_special=True),
    }
    for way, tokens in ways.items():
        for what, token in ends.items():
            for place, pair in enumerate(pairwise(tokens)):
                if token is not None and pair == (token, token):
                    yield f"the {what} token {template.decode([token])!r} occurs twice at token {place}{way}"


def _ends_untrained(template: ChatTemplate, item: RenderedConversation) -> Iterator[str]:
    for turn in item.turns:
        if turn.answer and not template.special_ids.intersection(turn.answer):
            end = _around(template, turn.answer, len(turn.answer))
            yield f"message {turn.message} ends in {end} without a special token: a model does not learn to stop there"


def _marks_differ(template: ChatTemplate, item: RenderedConversation) -> Iterator[str]:
    marked = template.marked_tokens(item.conversation.messages, item.conversation.tools)
    if len(marked) != len(item.trained):
        yield f"the template's marks cover {len(marked)} tokens, the conversation has {len(item.trained)}"
        return
    place = first_difference([int(mark) for mark in marked], [int(mark) for mark in item.trained])
    if place < len(marked):
        words = ("is", "is not") if marked[place] else ("is not", "is")
        where = _around(template, item.whole.tokens, place)
        yield f"token {place}, {where}, {words[0]} marked by the template and {words[1]} in an assistant turn"


def _around(template: ChatTemplate, tokens: Sequence[int], place: int) -> str:
    return repr(template.decode(tokens[max(0, place - 2) : place + _CONTEXT]))


_REFUSED = "train on conversations of a different shape, or give another template with --template"
_QUESTIONS = (
    _Question(
        "history-is-append-only",
        _rewritten,
        "keep the tokens of the rollout and append to them, or use a template that leaves earlier turns alone",
        lambda _template, conversation: len(conversation.assistant_turns) > 1,
        "needs a conversation with two assistant turns",
    ),
    _Question(
        "reencoding-is-stable",
        _reencoded,
        "pass token ids between engine and trainer, never text",
    ),
    _Question(
        "generation-prompt-is-constant",
        _prompts_differ,
        "mask from the first token that the model sampled, and render with the same options in rollout and training",
    ),
    _Question(
        "thinking-is-kept",
        _thinking_dropped,
        "train each turn as a sample of its own, or use a template that keeps the reasoning",
        lambda _template, conversation: any(
            _thought(conversation, number) for number in conversation.assistant_turns[:-1]
        ),
        "needs a conversation with reasoning before its last turn",
    ),
    _Question(
        "special-tokens-once",
        _doubled,
        "encode rendered text with add_special_tokens=False",
    ),
    _Question(
        "tool-calls-survive",
        tool_call_problems,
        "pass arguments as objects, and pass `tools` to the template wherever it is rendered",
        lambda _template, conversation: (
            bool(conversation.tools) or any(message.get("tool_calls") for message in conversation.messages)
        ),
        "needs a conversation with tools",
    ),
    _Question(
        "turn-end-is-trained",
        _ends_untrained,
        "let the template end assistant turns with the end token, inside of the trained part",
    ),
    _Question(
        "mask-agrees",
        _marks_differ,
        "put {% generation %} around exactly what the model samples, its end token included",
        lambda template, _conversation: "{% generation %}" in template.source or "{%- generation" in template.source,
        "the template has no {% generation %}",
    ),
)
