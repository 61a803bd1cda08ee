"""OpenAI's Responses: POST /v1/responses, whole or streamed, over the conversation that all protocols share.

The last responses are kept, so that a request can continue one by `previous_response_id`.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rldbg.algorithms import LogprobMode
from rldbg.inference.backend import Backend
from rldbg.inference.conversation.answer import Answer
from rldbg.inference.conversation.from_responses import choice_of, messages_of, tools_of
from rldbg.inference.conversation.messages import ChatMessage
from rldbg.inference.protocols.answer_stream import Reader
from rldbg.inference.protocols.chat_jobs import Chat, ChatPrompt, chat_prompt, reasoning_effort
from rldbg.inference.protocols.constraint_fields import constraint_of, json_format
from rldbg.inference.protocols.fields import Fields
from rldbg.inference.protocols.generation_jobs import chat_job, new_id, top_count
from rldbg.inference.protocols.http import Json, RouteTable, aborted_if_left, events, fields_of, outcomes, submit_all
from rldbg.inference.protocols.openai import error_body
from rldbg.inference.protocols.responses_forms import ResponseForm
from rldbg.inference.request_error import RequestError

_KEPT = 256
# Reasoning is never encrypted here: it is in the output itself.
_INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")


@dataclass(frozen=True, slots=True)
class _Stored:
    body: Mapping[str, Any]
    messages: list[ChatMessage]


class Responses:
    def __init__(self, backend: Backend, mode: LogprobMode) -> None:
        self._backend = backend
        self._mode = mode
        self._stored: OrderedDict[str, _Stored] = OrderedDict()

    def table(self) -> RouteTable:
        return (
            ("POST", "/v1/responses", self.create),
            ("POST", "/v1/responses/input_tokens", self.count_tokens),
            ("GET", "/v1/responses/{response}", self.retrieve),
            ("DELETE", "/v1/responses/{response}", self.delete),
        )

    async def create(self, request: Request) -> Response:
        fields = await fields_of(request)
        unknown = [name for name in fields.texts("include") if name not in _INCLUDED]
        if unknown:
            raise RequestError(f"include has {unknown[0]!r:.80}; it takes {' and '.join(_INCLUDED)}")
        chat = self._chat(fields)
        prompt = chat_prompt(self._backend, chat)
        job = chat_job(
            fields,
            prompt,
            name=fields.optional_text("request_id") or new_id("resp_"),
            limit=fields.integer("max_output_tokens", prompt.room(self._backend.card), least=1),
            stop_texts=fields.texts("stop"),
            mode=self._mode,
            top=top_count(fields, "top_logprobs"),
        )
        form = ResponseForm(fields, job, self._reader(prompt), fields.optional_text("model") or self._backend.card.name)
        streams, keeps = fields.flag("stream"), fields.flag("store", True)
        [pending] = submit_all(self._backend, [job], streams=streams)

        def keep(body: Mapping[str, Any], answer: Answer) -> None:
            if keeps:
                told = [message for message in chat.messages if message["role"] != "system"]
                self._keep(body, [*told, answer.message()])

        async def stream() -> AsyncIterator[Mapping[str, Any]]:
            done: list[Answer] = []
            number = 0
            with aborted_if_left(self._backend, [pending]):
                async for event in form.events(pending, done):
                    if done:
                        keep(event["response"], done[0])
                    yield event | {"sequence_number": number}
                    number += 1

        if streams:
            return events(stream(), _stream_error, named=True)
        [outcome] = await outcomes(request, self._backend, [pending])
        body, answer = form.whole(outcome)
        keep(body, answer)
        return Json(body)

    async def count_tokens(self, request: Request) -> Response:
        prompt = chat_prompt(self._backend, self._chat(await fields_of(request)))
        return Json({"object": "response.input_tokens", "input_tokens": len(prompt.tokens)})

    async def retrieve(self, request: Request) -> Response:
        return Json(self._found(request.path_params["response"]).body)

    async def delete(self, request: Request) -> Response:
        name = request.path_params["response"]
        self._found(name)
        del self._stored[name]
        return Json({"id": name, "object": "response", "deleted": True})

    def _chat(self, fields: Fields) -> Chat:
        text, card = fields.inner("text"), self._backend.card
        before = fields.optional_text("previous_response_id")
        effort = fields.inner("reasoning").raw("effort")
        return Chat(
            messages=messages_of(
                fields.raw("instructions"), fields.raw("input"), self._found(before).messages if before else []
            ),
            tools=tools_of(fields.raw("tools")),
            choice=choice_of(fields.raw("tool_choice")),
            options=dict(fields.object("chat_template_kwargs"))
            | reasoning_effort(card.text, "reasoning.effort", effort),
            constraint=json_format(text.raw("format"), "text.format") or constraint_of(fields),
            separates_reasoning=fields.flag("include_reasoning", True),
            several_calls=fields.flag("parallel_tool_calls", True),
        )

    def _reader(self, prompt: ChatPrompt) -> Reader:
        return Reader(self._backend.card.text, prompt.reading)

    def _keep(self, body: Mapping[str, Any], messages: list[ChatMessage]) -> None:
        self._stored[body["id"]] = _Stored(body, messages)
        while len(self._stored) > _KEPT:
            self._stored.popitem(last=False)

    def _found(self, name: str) -> _Stored:
        if name not in self._stored:
            raise RequestError(f"no response {name[:80]!r}; the last {_KEPT} with store=true are kept", 404)
        return self._stored[name]


def _stream_error(error: RequestError) -> Mapping[str, Any]:
    return {"type": "error", "code": str(error.status), "message": error.message, "param": None} | {
        "error": error_body(error)["error"]
    }
