"""Anthropic's Messages: POST /v1/messages, whole or streamed, over the conversation that all protocols share."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rldbg.algorithms import LogprobMode
from rldbg.inference.backend import Backend
from rldbg.inference.conversation.from_messages import choice_of, messages_of, tools_of
from rldbg.inference.protocols.answer_stream import Reader
from rldbg.inference.protocols.chat_jobs import Chat, chat_prompt, reasoning_effort
from rldbg.inference.protocols.constraint_fields import json_format
from rldbg.inference.protocols.fields import Fields
from rldbg.inference.protocols.generation_jobs import chat_job, new_id
from rldbg.inference.protocols.http import Json, RouteTable, aborted_if_left, events, fields_of, outcomes, submit_all
from rldbg.inference.protocols.messages_forms import MessageForm
from rldbg.inference.request_error import RequestError

_KINDS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}


def messages_error(error: RequestError) -> Response:
    return Json(_error_body(error), error.status)


def _error_body(error: RequestError) -> dict[str, Any]:
    kind = "api_error" if error.status >= 500 else _KINDS.get(error.status, "invalid_request_error")
    details = {"details": error.details} if error.details else {}
    return {"type": "error", "error": {"type": kind, "message": error.message} | details}


class MessagesProtocol:
    def __init__(self, backend: Backend, mode: LogprobMode) -> None:
        self._backend = backend
        self._mode = mode

    def table(self) -> RouteTable:
        return (
            ("POST", "/v1/messages", self.create),
            ("POST", "/v1/messages/count_tokens", self.count_tokens),
        )

    async def create(self, request: Request) -> Response:
        fields = await fields_of(request)
        if not fields.has("max_tokens"):
            raise RequestError("max_tokens is missing")
        prompt = chat_prompt(self._backend, self._chat(fields))
        job = chat_job(
            fields,
            prompt,
            name=fields.optional_text("request_id") or new_id("msg_"),
            limit=fields.integer("max_tokens", 1, least=1),
            stop_texts=fields.texts("stop_sequences"),
            mode=self._mode,
        )
        reader = Reader(self._backend.card.text, prompt.reading)
        form = MessageForm(job, reader, fields.optional_text("model") or self._backend.card.name)
        form.with_ids = fields.flag("return_token_ids")
        streams = fields.flag("stream")
        [pending] = submit_all(self._backend, [job], streams=streams)

        async def stream() -> AsyncIterator[Mapping[str, Any]]:
            with aborted_if_left(self._backend, [pending]):
                async for event in form.events(pending):
                    yield event

        if streams:
            return events(stream(), _error_body, named=True)
        [outcome] = await outcomes(request, self._backend, [pending])
        return Json(form.whole(outcome))

    async def count_tokens(self, request: Request) -> Response:
        prompt = chat_prompt(self._backend, self._chat(await fields_of(request)))
        return Json({"input_tokens": len(prompt.tokens)})

    def _chat(self, fields: Fields) -> Chat:
        messages = messages_of(fields.raw("system"), fields.raw("messages"))
        output = fields.inner("output_config")
        format = output.raw("format") or fields.raw("output_format")
        return Chat(
            messages=messages,
            tools=tools_of(fields.raw("tools")),
            choice=choice_of(fields.raw("tool_choice")),
            options=dict(fields.object("chat_template_kwargs"))
            | self._thinking(fields)
            | reasoning_effort(self._backend.card.text, "output_config.effort", output.raw("effort")),
            # A prefilled answer is one that the last message has begun.
            ending="continue" if messages[-1]["role"] == "assistant" else "answer",
            constraint=json_format(format, "output_config.format"),
            several_calls=not fields.inner("tool_choice").flag("disable_parallel_tool_use"),
        )

    def _thinking(self, fields: Fields) -> dict[str, Any]:
        """Reasoning is switched where the template has a switch for it."""
        wanted = fields.inner("thinking").text("type")
        if not wanted:
            return {}
        if wanted not in ("enabled", "disabled", "adaptive"):
            raise RequestError("thinking.type must be enabled, adaptive or disabled")
        template = self._backend.card.text.template
        if wanted != "disabled" and "think" not in template.lower():
            raise RequestError("the model's chat template has no reasoning that thinking could switch on; remove it")
        return {"enable_thinking": wanted != "disabled"} if "enable_thinking" in template else {}
