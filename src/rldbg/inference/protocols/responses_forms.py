"""The forms of OpenAI's Responses: the whole object, and the events of a stream."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from rldbg.inference.conversation.answer import Answer, AnswerPart
from rldbg.inference.generation import GenerationJob, Outcome, PendingGeneration
from rldbg.inference.protocols.answer_stream import Reader
from rldbg.inference.protocols.fields import Fields
from rldbg.inference.protocols.generation_jobs import new_id

# Fields of a request that the answer repeats, with the value of those that are not there.
_REPEATED: Mapping[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True, "temperature": 1.0,
    "tool_choice": "auto", "tools": [], "top_p": 1.0, "previous_response_id": None,
    "text": {"format": {"type": "text"}}, "truncation": "disabled",
    "reasoning": {"effort": None, "summary": None}, "store": True, "user": None,
    "top_logprobs": 0, "background": False, "service_tier": "default",
}  # fmt: skip


class ResponseForm:
    """One response: its parts become items of the output, each with an id of its own."""

    def __init__(self, fields: Fields, job: GenerationJob, reader: Reader, model: str) -> None:
        self._job = job
        self._reader = reader
        self._with_ids = fields.flag("return_token_ids")
        given = {name: fields.raw(name) for name in _REPEATED if fields.has(name)}
        self._base = _base(given, job.id, model)
        self._with_logprobs = "message.output_text.logprobs" in (fields.raw("include") or ())

    def whole(self, outcome: Outcome) -> tuple[dict[str, Any], Answer]:
        answer = self._reader.whole(self._job, outcome)
        items = [_finished(_new_item(part), part.text) for part in answer.parts()]
        return self._complete(outcome, items), answer

    def _complete(self, outcome: Outcome, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        cut = outcome.finish.kind == "length"
        tokens = len(outcome.tokens)
        prompt = outcome.prompt or self._job.prompt
        body = self._base | _ended(len(prompt), tokens, cut)
        body |= {"output": self._with_scores(list(items), outcome), "weight_version": outcome.weight_version}
        return body | (token_fields(prompt, outcome) if self._with_ids else {})

    def _with_scores(self, items: list[dict[str, Any]], outcome: Outcome) -> list[dict[str, Any]]:
        """Log probs are those of all tokens of the answer, in its text."""
        content = next((part for item in items if item["type"] == "message" for part in item["content"]), None)
        if self._with_logprobs and content is not None:
            tops = outcome.top or [[]] * len(outcome.tokens)
            content["logprobs"] = [
                self._score(token, score) | {"top_logprobs": [self._score(*other) for other in top]}
                for token, score, top in zip(outcome.tokens, outcome.logprobs, tops, strict=True)
            ]
        return items

    def _score(self, token: int | str, logprob: float) -> dict[str, Any]:
        name = token if isinstance(token, str) else self._reader.text.decode([token], skip_special=False)
        return {"token": name, "logprob": logprob, "bytes": list(name.encode())}

    async def events(self, pending: PendingGeneration, done: list[Answer]) -> AsyncIterator[dict[str, Any]]:
        """Everything that a stream tells, without the numbers of the events; `done` gets the answer at its end."""
        start = self._base | {"status": "in_progress", "output": []}
        yield {"type": "response.created", "response": start}
        yield {"type": "response.in_progress", "response": start}
        output = _Output()
        parts: list[AnswerPart] = []
        async for piece in self._reader.pieces(pending):
            for part in piece.parts:
                parts.append(part)
                for event in output.add(part):
                    yield event
            if piece.outcome is not None:
                for event in output.close():
                    yield event
                whole = self._complete(piece.outcome, output.items)
                done.append(Answer.of_parts(parts))
                yield {"type": f"response.{whole['status']}", "response": whole}


def told(
    answer: Answer, request: Mapping[str, Any], name: str, counts: tuple[int, int], cut: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An answer that is known as a whole response, and as the events of a stream. `counts` are tokens in and out."""
    given = {key: request[key] for key in _REPEATED if request.get(key) is not None}
    base, output = _base(given, name, str(request.get("model"))), _Output()
    start = base | {"status": "in_progress", "output": []}
    events = [{"type": f"response.{state}", "response": start} for state in ("created", "in_progress")]
    for part in answer.parts():
        events += output.add(part)
    events += output.close()
    whole = base | _ended(*counts, cut) | {"output": output.items}
    events.append({"type": f"response.{whole['status']}", "response": whole})
    return whole, [event | {"sequence_number": number} for number, event in enumerate(events)]


def _base(given: Mapping[str, Any], name: str, model: str) -> dict[str, Any]:
    known = {"id": name, "object": "response", "created_at": int(time.time()), "model": model}
    return {**_REPEATED, **given, **known, "error": None, "incomplete_details": None, "usage": None}


def _ended(prompt: int, tokens: int, cut: bool) -> dict[str, Any]:
    return {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + tokens,
        },
    }


class _Output:
    """The items of an output as they grow."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._kind: str | None = None
        self._text = ""

    def add(self, part: AnswerPart) -> list[dict[str, Any]]:
        events = []
        if part.kind != self._kind or part.call is not None:
            events += self.close()
            events += self._open(part)
        self._text += part.text if part.call is None else part.call.arguments
        return [*events, self._event(_DELTAS[part.kind], delta=part.text if part.call is None else part.call.arguments)]

    def _open(self, part: AnswerPart) -> list[dict[str, Any]]:
        self._kind, self._text = part.kind, ""
        item = _new_item(part)
        self.items.append(item)
        shown: dict[str, Any] = item | {"status": "in_progress"}
        shown["arguments" if part.call else "content"] = "" if part.call else []
        events: list[dict[str, Any]] = [
            {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": shown}
        ]
        if part.call is None:
            events.append(self._event("response.content_part.added", part=_content(part.kind, "")))
        return events

    def close(self) -> list[dict[str, Any]]:
        if self._kind is None:
            return []
        kind, item = self._kind, _finished(self.items[-1], self._text)
        self._kind = None
        index = {"output_index": len(self.items) - 1}
        if kind == "call":
            events = [self._event("response.function_call_arguments.done", arguments=self._text, name=item["name"])]
        else:
            events = [self._event(_DELTAS[kind].replace(".delta", ".done"), text=self._text)]
            events.append(self._event("response.content_part.done", part=_content(kind, self._text)))
        return [*events, {"type": "response.output_item.done", "item": item} | index]

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        place = {} if "function_call" in kind else {"content_index": 0}
        extra: dict[str, Any] = {"logprobs": []} if "output_text" in kind else {}
        return (
            {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
            | place
            | values
            | extra
        )


_DELTAS = {
    "text": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "call": "response.function_call_arguments.delta",
}


def _new_item(part: AnswerPart) -> dict[str, Any]:
    if part.call is not None:
        known = {"call_id": part.call.id, "name": part.call.name, "arguments": part.call.arguments}
        return {"type": "function_call", "id": new_id("fc_"), "status": "completed"} | known
    if part.kind == "reasoning":
        return {"type": "reasoning", "id": new_id("rs_"), "summary": [], "content": [], "status": "completed"}
    return {"type": "message", "id": new_id("msg_"), "role": "assistant", "status": "completed", "content": []}


def _finished(item: dict[str, Any], text: str) -> dict[str, Any]:
    """An item with its text; a call has its own already."""
    if item["type"] != "function_call":
        item["content"] = [_content("reasoning" if item["type"] == "reasoning" else "text", text)]
    return item


def _content(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def token_fields(prompt: Sequence[int], outcome: Outcome) -> dict[str, Any]:
    """What a recording needs of an answer, beside its form."""
    return {
        "prompt_token_ids": list(prompt),
        "token_ids": outcome.tokens,
        "token_logprobs": outcome.logprobs,
        "token_versions": outcome.versions,
    }
