"""A conversation rendered turn by turn, as a rollout meets it, and the tokens that would be trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

from rldbg.templates.conversations import Conversation
from rldbg.templates.rendering import ChatTemplate


@dataclass(frozen=True, slots=True)
class Rendering:
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """One answer: what the model was given, and the conversation once the answer is complete."""

    message: int
    history: Rendering
    prompt: Rendering
    whole: Rendering

    @property
    def is_continued(self) -> bool:
        """Whether the complete turn begins with what the model was given."""
        return starts_with(self.whole.tokens, self.prompt.tokens)

    @property
    def answer(self) -> tuple[int, ...]:
        """The tokens of the complete turn from where it no longer is what the model was given."""
        return self.whole.tokens[first_difference(self.prompt.tokens, self.whole.tokens) :]

    @property
    def written(self) -> str:
        """The text that the message adds to the history, or all of it if the history is written differently."""
        return self.whole.text.removeprefix(self.history.text)

    @property
    def start(self) -> str:
        """What the template adds to the history to begin an answer."""
        return self.prompt.text.removeprefix(self.history.text)


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    conversation: Conversation
    turns: tuple[AssistantTurn, ...]
    whole: Rendering
    texts: tuple[str, ...]
    """The text of each token of the whole."""
    trained: tuple[bool, ...]
    """Whether each token of the whole lies in an assistant turn, where that can be told."""


def starts_with(tokens: Sequence[int], first: Sequence[int]) -> bool:
    return tuple(tokens[: len(first)]) == tuple(first)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first place at which two sequences differ, or the end of the shorter one."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def render_conversation(template: ChatTemplate, conversation: Conversation) -> RenderedConversation:
    """Raises RenderingError if the template does not take the conversation."""

    def rendered(end: int, *, start_answer: bool = False) -> Rendering:
        text = template.text(conversation.messages[:end], conversation.tools, start_answer=start_answer)
        return Rendering(text, tuple(template.encode(text)))

    turns = tuple(
        AssistantTurn(number, rendered(number), rendered(number, start_answer=True), rendered(number + 1))
        for number in conversation.assistant_turns
    )
    whole = rendered(len(conversation.messages))
    trained = [False] * len(whole.tokens)
    for turn in turns:
        if starts_with(whole.tokens, turn.whole.tokens):
            start, count = len(turn.whole.tokens) - len(turn.answer), _sampled(turn.answer, template.special_ids)
            trained[start : start + count] = [True] * count
    return RenderedConversation(conversation, turns, whole, _token_texts(template, whole.tokens), tuple(trained))


def _token_texts(template: ChatTemplate, tokens: Sequence[int]) -> tuple[str, ...]:
    """The text of each token; a character that several tokens make up is the last one's."""
    texts, pending = [], []
    for token in tokens:
        pending.append(token)
        text = template.decode(pending)
        is_complete = not text.endswith("\ufffd")
        texts.append(text if is_complete else "")
        pending = [] if is_complete else pending
    return tuple([*texts[:-1], template.decode(pending)] if pending else texts)


def _sampled(answer: Sequence[int], special_ids: frozenset[int]) -> int:
    """How many tokens of an answer the model samples: those up to the token that ends its turn."""
    ends = [place for place, token in enumerate(answer) if token in special_ids]
    return ends[-1] + 1 if ends else len(answer)
