"""The forms of Anthropic's Messages: the whole message, and the events of a stream."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from rldbg.inference.conversation.answer import Answer, AnswerPart
from rldbg.inference.generation import GenerationJob, Outcome, PendingGeneration
from rldbg.inference.protocols.answer_stream import Reader
from rldbg.inference.protocols.responses_forms import token_fields


class MessageForm:
    def __init__(self, job: GenerationJob, reader: Reader, model: str) -> None:
        self._job = job
        self._reader = reader
        self._base = {"id": job.id, "type": "message", "role": "assistant", "model": model}
        self.with_ids = False

    def whole(self, outcome: Outcome) -> dict[str, Any]:
        answer = self._reader.whole(self._job, outcome)
        body = self._base | {"content": [_block(part) for part in answer.parts()], "usage": self._usage(outcome)}
        return body | _stop(outcome, calls=bool(answer.calls)) | self._extra(outcome)

    async def events(self, pending: PendingGeneration) -> AsyncIterator[dict[str, Any]]:
        opening: dict[str, Any] = self._base | {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(None),
        }
        yield {"type": "message_start", "message": opening}
        kind, index, calls = None, -1, False
        async for piece in self._reader.pieces(pending):
            for part in piece.parts:
                if part.kind != kind or part.call is not None:
                    if kind is not None:
                        yield {"type": "content_block_stop", "index": index}
                    kind, index, calls = part.kind, index + 1, calls or part.call is not None
                    yield {"type": "content_block_start", "index": index, "content_block": _empty_block(part)}
                for delta in _deltas(part):
                    yield {"type": "content_block_delta", "index": index, "delta": delta}
            if piece.outcome is not None:
                if kind is not None:
                    yield {"type": "content_block_stop", "index": index}
                yield {
                    "type": "message_delta",
                    "delta": _stop(piece.outcome, calls=calls),
                    "usage": self._usage(piece.outcome),
                } | self._extra(piece.outcome)
        yield {"type": "message_stop"}

    def _usage(self, outcome: Outcome | None) -> dict[str, Any]:
        prompt = (outcome.prompt if outcome else ()) or self._job.prompt
        return {
            "input_tokens": len(prompt),
            "output_tokens": len(outcome.tokens) if outcome else 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        }

    def _extra(self, outcome: Outcome) -> dict[str, Any]:
        ids = token_fields(outcome.prompt or self._job.prompt, outcome) if self.with_ids else {}
        return {"weight_version": outcome.weight_version} | ids


def told(
    answer: Answer, name: str, model: str, counts: tuple[int, int], cut: bool, matched: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An answer that is known as a whole message, and as the events of a stream. `counts` are tokens in and out."""
    base = {"id": name, "type": "message", "role": "assistant", "model": model}
    stop = _stopped(cut, matched, calls=bool(answer.calls))
    usage = {"input_tokens": counts[0], "output_tokens": counts[1]}
    usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    opening: dict[str, Any] = base | {
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage | {"output_tokens": 0},
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": opening}]
    for index, part in enumerate(answer.parts()):
        events.append({"type": "content_block_start", "index": index, "content_block": _empty_block(part)})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in _deltas(part)]
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": stop, "usage": usage}, {"type": "message_stop"}]
    return base | {"content": [_block(part) for part in answer.parts()], "usage": usage} | stop, events


def _stop(outcome: Outcome, *, calls: bool) -> dict[str, Any]:
    return _stopped(outcome.finish.kind == "length", outcome.finish.matched, calls=calls)


def _stopped(cut: bool, matched: Any, *, calls: bool) -> dict[str, Any]:
    if cut:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if isinstance(matched, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}


def _block(part: AnswerPart) -> dict[str, Any]:
    if part.call is not None:
        try:
            return _empty_block(part) | {"input": json.loads(part.call.arguments)}
        except ValueError:  # a call that was cut off has no arguments in this protocol
            return _empty_block(part)
    name = "thinking" if part.kind == "reasoning" else "text"
    return _empty_block(part) | {name: part.text}


def _empty_block(part: AnswerPart) -> dict[str, Any]:
    if part.call is not None:
        return {"type": "tool_use", "id": part.call.id, "name": part.call.name, "input": {}}
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _deltas(part: AnswerPart) -> Iterator[dict[str, Any]]:
    if part.call is not None:
        yield {"type": "input_json_delta", "partial_json": part.call.arguments}
    elif part.kind == "reasoning":
        yield {"type": "thinking_delta", "thinking": part.text}
    else:
        yield {"type": "text_delta", "text": part.text}
