"""Responses and Messages as the proxy reads them: the same conversation and answer as those of chat completions."""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rldbg.inference.conversation import from_messages, from_responses
from rldbg.inference.conversation.answer import Answer, ToolCall
from rldbg.inference.conversation.messages import ChatMessage, conversation_text
from rldbg.inference.proxy.captured import Body, Captured, likeliest

_KEPT = 1024


class ResponsesReader:
    """Keeps the conversations of the last responses: requests continue them by their names."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, list[ChatMessage]] = OrderedDict()

    def read(self, request: Body, answer: Any) -> Iterator[Captured]:
        before = self._told.get(str(request.get("previous_response_id")), [])
        messages = from_responses.messages_of(request.get("instructions"), request.get("input"), before)
        parts = [_part(item) for item in answer.get("output", [])]
        whole = Answer.of_parts([])
        for part in parts:
            whole = Answer(whole.reasoning + part.reasoning, whole.text + part.text, (*whole.calls, *part.calls))
        told = [message for message in messages if message["role"] != "system"]
        self._told[str(answer.get("id"))] = [*told, whole.message()]
        while len(self._told) > _KEPT:
            self._told.popitem(last=False)
        finish = "length" if answer.get("status") == "incomplete" else "stop"
        captured = _captured(messages, whole, answer, finish, request.get("seed"))
        yield replace(captured, top=likeliest(_scores(answer)))

    @staticmethod
    def join(events: Sequence[Body]) -> Any:
        """A stream ends with the whole response."""
        return next((event["response"] for event in reversed(events) if "response" in event), {})


def _scores(answer: Body) -> Sequence[Body]:
    """The log probs of all tokens of an answer, which stand in its text."""
    texts = [part for item in answer.get("output", []) if item.get("type") == "message" for part in item["content"]]
    return next((part["logprobs"] for part in texts if part.get("logprobs")), [])


def _part(item: Mapping[str, Any]) -> Answer:
    if item.get("type") == "function_call":
        return Answer(calls=(ToolCall(str(item["call_id"]), str(item["name"]), str(item["arguments"])),))
    text = "".join(str(part.get("text", "")) for part in item.get("content") or ())
    return Answer(reasoning=text) if item.get("type") == "reasoning" else Answer(text=text)


class MessagesReader:
    def read(self, request: Body, answer: Any) -> Iterator[Captured]:
        messages = from_messages.messages_of(request.get("system"), request.get("messages"))
        blocks = answer.get("content", [])
        whole = Answer(
            reasoning="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
            text="".join(block["text"] for block in blocks if block["type"] == "text"),
            calls=tuple(
                ToolCall(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False))
                for block in blocks
                if block["type"] == "tool_use"
            ),
        )
        finish = "length" if answer.get("stop_reason") == "max_tokens" else "stop"
        yield _captured(messages, whole, answer, finish, request.get("seed"), answer.get("stop_sequence"))

    @staticmethod
    def join(events: Sequence[Body]) -> Any:
        """The message that the events of a stream build up."""
        whole: dict[str, Any] = {"content": []}
        blocks: dict[int, dict[str, Any]] = {}
        for event in events:
            if event.get("type") == "content_block_start":
                blocks[event["index"]] = dict(event["content_block"]) | {"json": ""}
            elif event.get("type") == "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                for name, value in delta.items():
                    place = "json" if name == "partial_json" else name
                    if place in ("json", "text", "thinking"):
                        block[place] += value
            elif event.get("type") == "message_delta":
                whole |= event["delta"] | {
                    name: value for name, value in event.items() if name not in ("type", "delta")
                }
        for block in blocks.values():
            written = block.pop("json")
            if block["type"] == "tool_use":
                block["input"] = json.loads(written or "{}")
        return whole | {"content": [blocks[index] for index in sorted(blocks)]}


def _captured(
    messages: list[ChatMessage], answer: Answer, body: Body, finish: str, seed: Any, stop: str | None = None
) -> Captured:
    return Captured(
        prompt=body.get("prompt_token_ids") or [],
        tokens=body.get("token_ids") or [],
        logprobs=body.get("token_logprobs") or [],
        prompt_text=conversation_text(messages),
        text=answer.text,
        finish=finish,
        version=body.get("weight_version"),
        answer=answer,
        stop=stop,
        seed=seed if isinstance(seed, int) else None,
    )
