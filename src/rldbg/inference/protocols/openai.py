"""OpenAI's completions and chat completions as vLLM extends them: token ids in and out, log probs, streaming."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from rldbg.algorithms import LogprobMode
from rldbg.inference.backend import Backend
from rldbg.inference.conversation.from_responses import choice_of
from rldbg.inference.conversation.messages import for_template
from rldbg.inference.conversation.tools import listed
from rldbg.inference.generation import Constraint, Ending, GenerationJob, PendingGeneration
from rldbg.inference.protocols.chat_jobs import Chat, chat_prompt, reasoning_effort
from rldbg.inference.protocols.constraint_fields import constraint_of
from rldbg.inference.protocols.fields import MAX_SAMPLES, Fields, is_tokens
from rldbg.inference.protocols.generation_jobs import new_id, samples, seed_of, settings_of, top_count
from rldbg.inference.protocols.http import Json, RouteTable, aborted_if_left, events, fields_of, outcomes, submit_all
from rldbg.inference.protocols.openai_forms import ChatForm, CompletionForm, Form, usage
from rldbg.inference.request_error import RequestError

_T = TypeVar("_T")

_DEFAULT_TOKENS = 16
_Prompt = tuple[tuple[int, ...], str | None]


def openai_error(error: RequestError) -> Response:
    return Json(error_body(error), error.status)


def error_body(error: RequestError) -> dict[str, Any]:
    kinds = {404: "NotFoundError", 413: "BadRequestError", 500: "InternalServerError", 401: "AuthenticationError"}
    kind = kinds.get(error.status, "BadRequestError")
    return {
        "object": "error",
        "message": error.message,
        "type": kind,
        "code": error.status,
        "error": {"message": error.message, "type": kind, "param": None, "code": error.status},
    }


class OpenAi:
    def __init__(self, backend: Backend, mode: LogprobMode) -> None:
        self._backend = backend
        self._mode = mode
        self._since = int(time.time())

    def table(self) -> RouteTable:
        return (
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{model:path}", self.model),
            ("POST", "/v1/completions", self.completions),
            ("POST", "/v1/chat/completions", self.chat),
            ("POST", "/tokenize", self.tokenize),
            ("POST", "/detokenize", self.detokenize),
        )

    async def models(self, _request: Request) -> Response:
        return Json({"object": "list", "data": [self._entry()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name != self._backend.card.name:
            raise RequestError(f"no model {name[:80]!r}; this server has {self._backend.card.name!r}", 404)
        return Json(self._entry())

    def _entry(self) -> dict[str, Any]:
        card = self._backend.card
        known = {"id": card.name, "object": "model", "created": self._since, "owned_by": "rldbg", "root": card.path}
        return known | {"max_model_len": card.max_length}

    async def completions(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompts = self._prompts(fields)
        if fields.flag("stream") and fields.flag("echo") and fields.has("logprobs"):
            raise RequestError("echo with logprobs is not supported with stream; remove one of the three")
        limit = fields.integer("max_tokens", _DEFAULT_TOKENS)
        count = top_count(fields, "logprobs")
        jobs = self._jobs(fields, prompts, limit, count, "cmpl-")
        form = CompletionForm(self._backend, fields, with_logprobs=fields.has("logprobs"))
        return await self._answer(request, fields, jobs, form)

    async def chat(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompt = chat_prompt(self._backend, self._chat(fields))
        limit = fields.integer("max_completion_tokens", fields.integer("max_tokens", prompt.room(self._backend.card)))
        count = top_count(fields, "top_logprobs")
        jobs = self._jobs(fields, [(prompt.tokens, prompt.text)], limit, count, "chatcmpl-", prompt.constraint)
        form = ChatForm(self._backend, fields, with_logprobs=fields.flag("logprobs"), reading=prompt.reading)
        return await self._answer(request, fields, jobs, form)

    def _chat(self, fields: Fields) -> Chat:
        options = dict(fields.object("chat_template_kwargs"))
        effort = fields.raw("reasoning_effort")
        options |= reasoning_effort(self._backend.card.text, "reasoning_effort", effort)
        separates = fields.flag("separate_reasoning", True) and fields.flag("include_reasoning", True)
        return Chat(
            messages=_messages(fields),
            tools=listed(fields.raw("tools")),
            choice=choice_of(fields.raw("tool_choice")),
            options=options,
            ending=_ending(fields),
            constraint=constraint_of(fields),
            separates_reasoning=separates,
            several_calls=fields.flag("parallel_tool_calls", True),
        )

    async def tokenize(self, request: Request) -> Response:
        fields = await fields_of(request)
        text = self._backend.card.text
        talks = fields.has("messages")
        if fields.flag("add_special_tokens", not talks) is talks:
            raise RequestError("add_special_tokens must be true for a prompt and false for messages")
        if talks:
            messages, options = for_template(_messages(fields)), fields.object("chat_template_kwargs")
            tokens = text.chat(messages, listed(fields.raw("tools")) or None, options, _ending(fields))
        else:
            tokens = text.encode(fields.text("prompt"))
        return Json({"tokens": tokens, "count": len(tokens), "max_model_len": self._backend.card.max_length})

    async def detokenize(self, request: Request) -> Response:
        fields = await fields_of(request)
        tokens = fields.tokens("tokens")
        self._backend.card.check_tokens(tokens)
        return Json({"prompt": self._backend.card.text.decode(tokens, skip_special=fields.flag("skip_special_tokens"))})

    async def _answer(self, request: Request, fields: Fields, jobs: list[GenerationJob], form: Form) -> Response:
        streams = fields.flag("stream")
        answers = submit_all(self._backend, jobs, streams=streams)
        if streams:
            counted = jobs[:: _count(fields)] if fields.inner("stream_options").flag("include_usage") else []
            return events(_stream(self._backend, answers, form, counted), error_body)
        done = await outcomes(request, self._backend, answers)
        choices = [
            form.choice(index, job, outcome) for index, (job, outcome) in enumerate(zip(jobs, done, strict=True))
        ]
        body = form.envelope(jobs[0]) | {
            "choices": choices,
            "usage": usage(jobs[:: _count(fields)], [item.tokens for item in done]),
        }
        return Json(body | form.extra(jobs[0], done[0]))

    def _prompts(self, fields: Fields) -> list[_Prompt]:
        """vLLM's four shapes: a text, texts, token ids, lists of token ids."""
        prompt = fields.raw("prompt")
        encode = self._backend.card.text.encode
        if isinstance(prompt, str):
            return [(tuple(encode(prompt)), prompt)]
        if isinstance(prompt, list) and prompt:
            if is_tokens(prompt):
                return [(tuple(prompt), None)]
            if all(isinstance(item, str) for item in prompt):
                return [(tuple(encode(item)), item) for item in prompt]
            if all(is_tokens(item) for item in prompt):
                return [(tuple(item), None) for item in prompt]
        raise RequestError("prompt must be a string, a list of strings, a list of token ids or a list of such lists")

    def _jobs(
        self,
        fields: Fields,
        prompts: list[_Prompt],
        limit: int,
        top: int,
        prefix: str,
        constraint: Constraint | None = None,
    ) -> list[GenerationJob]:
        stops, mode = fields.texts("stop"), self._mode
        settings = settings_of(fields, max_new_tokens=limit, stop_texts=stops, mode=mode, constraint=constraint)
        count = _count(fields)
        if count * len(prompts) > MAX_SAMPLES:
            raise RequestError(f"{count * len(prompts)} samples in one request; at most {MAX_SAMPLES}")
        scores = fields.has("prompt_logprobs") or (fields.flag("echo") and fields.has("logprobs"))
        base = GenerationJob(
            id=fields.optional_text("request_id") or fields.optional_text("rid") or new_id(prefix),
            prompt=(),
            settings=settings,
            seed=0,
            top_logprobs=max(top, top_count(fields, "prompt_logprobs")),
            prompt_from=0 if scores else None,
        )
        seed = seed_of(fields, "seed" if fields.has("seed") else "sampling_seed")
        jobs = []
        for number, (tokens, text) in enumerate(prompts):
            name = base.id if number == 0 else f"{base.id}-p{number}"
            jobs += samples(replace(base, id=name, prompt=tokens, prompt_text=text), count, seed)
        return jobs


def _messages(fields: Fields) -> list[dict[str, Any]]:
    messages = fields.raw("messages")
    if not isinstance(messages, list) or not all(isinstance(item, dict) for item in messages) or not messages:
        raise RequestError("messages must be a list of objects with role and content")
    return messages


def _ending(fields: Fields) -> Ending:
    """vLLM's two fields: a prefilled answer is continued, or no assistant's turn is begun."""
    continues, begins = fields.flag("continue_final_message"), fields.flag("add_generation_prompt", True)
    if continues and begins and fields.has("add_generation_prompt"):
        raise RequestError("continue_final_message and add_generation_prompt are mutually exclusive")
    return "continue" if continues else "answer" if begins else "none"


def _count(fields: Fields) -> int:
    """How often each prompt is continued."""
    return fields.integer("n", 1, least=1, most=MAX_SAMPLES)


async def _stream(
    backend: Backend, answers: Sequence[PendingGeneration], form: Form, counted: Sequence[GenerationJob]
) -> AsyncIterator[Mapping[str, Any]]:
    """One chunk for each part of each choice, as they come; then the usage of the jobs to be counted, if any."""
    envelope = form.envelope(answers[0].job, chunk=True)
    with aborted_if_left(backend, answers):
        for index in range(len(answers)):
            if (first := form.opening(index)) is not None:
                yield envelope | {"choices": [first]}
        parts = [form.parts(index, answer) for index, answer in enumerate(answers)]
        seen: set[int] = set()
        async for part in _merged(parts):
            extra = {} if part["index"] in seen else form.first_chunk(answers[part["index"]].job)
            seen.add(part["index"])
            yield envelope | {"choices": [part | extra]}
        if counted:
            tokens = [(await answer.outcome()).tokens for answer in answers]
            yield envelope | {"choices": [], "usage": usage(counted, tokens)}


async def _merged(streams: Sequence[AsyncIterator[_T]]) -> AsyncIterator[_T]:
    """Several streams as one, in the order in which their items come.

    It ends when all have ended, or with the first error; when the consumer stops, the rest is cancelled.
    """
    if len(streams) == 1:
        async for item in streams[0]:
            yield item
        return
    queue: asyncio.Queue[tuple[bool, _T | BaseException | None]] = asyncio.Queue()

    async def feed(stream: AsyncIterator[_T]) -> None:
        try:
            async for item in stream:
                queue.put_nowait((True, item))
            queue.put_nowait((False, None))
        except Exception as error:  # noqa: BLE001 - it is raised again where the request is answered
            queue.put_nowait((False, error))

    tasks = [asyncio.create_task(feed(stream)) for stream in streams]
    open_streams = len(tasks)
    try:
        while open_streams:
            is_item, value = await queue.get()
            if is_item:
                yield value  # type: ignore[misc]
            elif value is not None:
                raise value  # type: ignore[misc]
            else:
                open_streams -= 1
    finally:
        for task in tasks:
            task.cancel()
