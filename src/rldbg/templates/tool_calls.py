"""Whether tools and tool calls survive a template."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rldbg.templates.conversations import TemplateMessage
from rldbg.templates.rendering import ChatTemplate, RenderingError
from rldbg.templates.turns import RenderedConversation


def tool_call_problems(template: ChatTemplate, item: RenderedConversation) -> Iterator[str]:
    conversation = item.conversation
    if conversation.tools and template.text(conversation.messages) == item.whole.text:
        yield "the template does not show the tools to the model"
    for turn in item.turns:
        for call in conversation.messages[turn.message].get("tool_calls") or ():
            yield from _lost(call.get("function", call), turn.message, turn.written)
    yield from _escaped_twice(template, conversation.messages, conversation.tools, item.whole.text)


def _lost(function: Mapping[str, Any], number: int, text: str) -> Iterator[str]:
    name, arguments = str(function.get("name")), function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):  # what a model wrote need not be JSON
            arguments = json.loads(arguments)
    if name not in text:
        yield f"the call of {name!r} in message {number} is not in the text"
    elif isinstance(arguments, Mapping) and arguments not in _objects(text):
        missing = [key for key, value in arguments.items() if key not in text or _plain(value) not in text]
        if missing:
            yield f"the argument {missing[0]!r} of {name!r} in message {number} cannot be read back from the text"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _objects(text: str) -> list[Any]:
    """Every JSON object in a text, and what is inside of it."""
    decoder, found = json.JSONDecoder(), []
    for place, character in enumerate(text):
        if character == "{":
            try:
                found += _nested(decoder.raw_decode(text, place)[0])
            except ValueError:
                continue
    return found


def _nested(value: Any) -> list[Any]:
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value, *(inner for part in inside for inner in _nested(part))]


def _escaped_twice(
    template: ChatTemplate, messages: Sequence[TemplateMessage], tools: Sequence[Any], text: str
) -> Iterator[str]:
    """OpenAI's clients send arguments as JSON text; many templates turn that into JSON once more."""
    if not any(message.get("tool_calls") for message in messages):
        return
    try:
        as_text = template.text([_with_texts(message) for message in messages], tools)
    except RenderingError:
        yield "arguments as JSON text, as OpenAI's clients send them, are refused by the template"
        return
    if '\\"' in as_text and '\\"' not in text:
        yield "arguments as JSON text, as OpenAI's clients send them, are escaped twice"


def _with_texts(message: TemplateMessage) -> TemplateMessage:
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_call_with_text(call) for call in calls]}


def _call_with_text(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    changed = {**function, "arguments": text}
    return {**call, "function": changed} if "function" in call else changed
