"""Agents that speak OpenAI's Responses or Anthropic's Messages inside a rollout.

Their requests are asked as chat completions, which every engine answers with token ids, and the answers are written in
the agent's own protocol. One object per episode: a response can be continued by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rldbg.inference.conversation import from_messages, from_responses
from rldbg.inference.conversation.answer import Answer
from rldbg.inference.conversation.messages import ChatMessage
from rldbg.inference.conversation.tools import ToolChoice
from rldbg.inference.protocols import messages_forms, responses_forms
from rldbg.inference.request_error import RequestError

CHAT = "/v1/chat/completions"
Told = tuple[dict[str, Any], Sequence[Mapping[str, Any]]]
"""A whole answer, and the events of a stream that tells it."""

# The same field of chat completions; without effect on tokens; and where it has another name.
_SAME = {
    "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "stop_token_ids", "min_tokens", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "logit_bias", "parallel_tool_calls", "chat_template_kwargs",
}  # fmt: skip
_NO_EFFECT = {
    "model", "stream", "stream_options", "store", "metadata", "user", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "cache_control", "service_tier", "truncation", "include",
}  # fmt: skip
_READ = {
    "responses": {"input", "instructions", "tools", "tool_choice", "previous_response_id", "text", "reasoning"},
    "messages": {"system", "messages", "tools", "tool_choice"},
}
_RENAMED = {
    "responses": {"max_output_tokens": "max_tokens"},
    "messages": {"max_tokens": "max_tokens", "stop_sequences": "stop"},
}


class AgentProtocols:
    """What an episode's agent has said and heard by either protocol."""

    def __init__(self) -> None:
        self._told: dict[str, list[ChatMessage]] = {}

    def as_chat(self, protocol: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The request as chat completions ask it. RequestError names a field that has no place there."""
        known = _SAME | _NO_EFFECT | _READ[protocol] | _RENAMED[protocol].keys()
        for name, value in body.items():
            if name not in known and value is not None:
                raise RequestError(f"{name} is not supported in a rollout by /v1/{protocol}; remove it")
        asked = {name: value for name, value in body.items() if name in _SAME and value is not None}
        asked |= {new: body[name] for name, new in _RENAMED[protocol].items() if body.get(name) is not None}
        source = from_responses if protocol == "responses" else from_messages
        if protocol == "responses":
            messages = from_responses.messages_of(body.get("instructions"), body.get("input"), self._before(body))
            asked |= _format(body.get("text") or {})
            if effort := (body.get("reasoning") or {}).get("effort"):
                asked["reasoning_effort"] = effort
        else:
            messages = from_messages.messages_of(body.get("system"), body.get("messages"))
        tools, choice = source.tools_of(body.get("tools")), source.choice_of(body.get("tool_choice"))
        return asked | {"messages": messages} | ({"tools": tools, "tool_choice": _choice(choice)} if tools else {})

    def told(self, protocol: str, body: Mapping[str, Any], asked: Mapping[str, Any], chat: Mapping[str, Any]) -> Told:
        """The answer of chat completions in the agent's protocol."""
        choice = chat["choices"][0]
        answer = Answer.of_message(choice.get("message") or {})
        usage = chat.get("usage") or {}
        counts = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        name, cut = str(chat.get("id")), choice.get("finish_reason") == "length"
        if protocol == "messages":
            return messages_forms.told(answer, name, str(body.get("model")), counts, cut, choice.get("stop_reason"))
        self._told[name] = [*(each for each in asked["messages"] if each["role"] != "system"), answer.message()]
        return responses_forms.told(answer, body, name, counts, cut)

    def _before(self, body: Mapping[str, Any]) -> list[ChatMessage]:
        name = body.get("previous_response_id")
        if name is not None and name not in self._told:
            raise RequestError(f"no response {name!r:.80} in this episode", 404)
        return self._told.get(str(name), [])


def _choice(choice: ToolChoice) -> Any:
    return {"type": "function", "function": {"name": choice.name}} if choice.name else choice.mode


def _format(text: Mapping[str, Any]) -> dict[str, Any]:
    """`text.format` of Responses has beside it what chat completions have inside of `json_schema`."""
    if text.get("verbosity") not in (None, "medium"):
        raise RequestError("text.verbosity is not supported in a rollout; remove it")
    given = text.get("format") or {"type": "text"}
    if given.get("type") != "json_schema":
        return {} if given.get("type") == "text" else {"response_format": given}
    return {
        "response_format": {"type": "json_schema", "json_schema": {key: given[key] for key in given if key != "type"}}
    }
