"""From a conversation, in whatever protocol it came, to the prompt of a job and how its answer is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rldbg.inference.backend import Backend, ModelCard
from rldbg.inference.conversation.families import family_of, reasoning_marks
from rldbg.inference.conversation.messages import ChatMessage, conversation_text, for_template
from rldbg.inference.conversation.parsing import Reading
from rldbg.inference.conversation.tools import AUTO, ToolChoice, forced_calls, schemas_of
from rldbg.inference.generation import Constraint, Ending, Text
from rldbg.inference.request_error import RequestError


@dataclass(frozen=True, slots=True)
class Chat:
    """What a client asks in a conversation. `constraint` is what the text of the answer must be."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Mapping[str, Any]] = ()
    choice: ToolChoice = AUTO
    options: Mapping[str, Any] = field(default_factory=dict)
    ending: Ending = "answer"
    constraint: Constraint | None = None
    separates_reasoning: bool = True
    several_calls: bool = True


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The prompt of a conversation, what its answer must be, and how it is read."""

    tokens: tuple[int, ...]
    text: str
    constraint: Constraint | None
    reading: Reading

    def room(self, card: ModelCard) -> int:
        """The largest number of tokens that fit after it."""
        return max(1, card.max_length - len(self.tokens))


def chat_prompt(backend: Backend, chat: Chat) -> ChatPrompt:
    text = backend.card.text
    tokens = tuple(text.chat(for_template(chat.messages), chat.tools or None, chat.options, chat.ending))
    schemas = schemas_of(chat.tools)
    family, constraint = family_of(text.template), chat.constraint
    if chat.choice.mode == "required":
        if chat.choice.name is not None and chat.choice.name not in schemas:
            raise RequestError(f"tool_choice names {chat.choice.name!r:.60}, which is not among the tools")
        if not schemas:
            raise RequestError("tool_choice asks for a call, but there are no tools")
        if constraint is not None:
            raise RequestError("a forced tool_choice and a response format are mutually exclusive")
        wanted = {name: schemas[name] for name in ([chat.choice.name] if chat.choice.name else schemas)}
        several = chat.several_calls and chat.choice.name is None
        constraint = Constraint("lark", forced_calls(family, wanted, text.added, several=several))
    marks = reasoning_marks(text.template) if chat.separates_reasoning else None
    opened = bool(marks and not constraint and text.decode(tokens[-8:], skip_special=False).rstrip().endswith(marks[0]))
    reads_calls = bool(chat.tools) and chat.choice.mode != "none"
    reading = Reading(family if reads_calls else None, schemas, marks, opened, chat.several_calls)
    return ChatPrompt(tokens, conversation_text(chat.messages), constraint, reading)


def reasoning_effort(text: Text, field: str, value: Any) -> dict[str, Any]:
    """For the template, by whatever field it came; where the template does not look at it, the field is refused."""
    if value is None:
        return {}
    if "reasoning_effort" not in text.template:
        raise RequestError(f"{field}: the model's chat template does not look at reasoning_effort; remove the field")
    return {"reasoning_effort": value}
