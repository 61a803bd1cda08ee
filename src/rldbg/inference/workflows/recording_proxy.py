"""A recording proxy in this process, in front of the inference servers: each episode has its own OpenAI base_url.

Chat completions and completions are passed on; Responses and Messages are asked as chat completions.

Requests pass on the network thread, so an agent that is stopped at a breakpoint does not delay the others' answers. A
stream is made of the whole answer: the tokens must be known before anything is passed on.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from rldbg.core import PrerequisiteError, RldbgError, async_http_client
from rldbg.inference.request_error import RequestError
from rldbg.inference.workflows.agent_protocols import CHAT, AgentProtocols
from rldbg.inference.workflows.episode import Episode
from rldbg.inference.workflows.request_formats import TOKEN_IDS, openai_answers
from rldbg.inference.workflows.servers import Servers
from rldbg.inference.workflows.timeline import now_us

if TYPE_CHECKING:
    import httpx
    from starlette.requests import Request
    from starlette.responses import Response

_BACKLOG = 4096
_STOP_S = 5.0


class _ProxiedEpisode:
    """One episode behind its key, and the tool calls the model asked for last."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.answered_us = 0
        self.tools: dict[str, tuple[str, str]] = {}
        self.protocols = AgentProtocols()

    def hear(self, messages: Any) -> None:
        """Tools whose results come with this request ran between the last answer and now."""
        for message in messages if isinstance(messages, list) else ():
            called = self.tools.pop(str(message.get("tool_call_id")), None) if isinstance(message, Mapping) else None
            if called:
                name, arguments = called
                result = str(message.get("content", ""))[:500]
                self.episode.timeline.add(
                    "tool", name, self.answered_us, now_us(), arguments=arguments[:500], result=result
                )

    def answer(self, body: Mapping[str, Any]) -> None:
        self.answered_us = now_us()
        for choice in body.get("choices", ()):
            for call in (choice.get("message") or {}).get("tool_calls") or ():
                function = call.get("function") or {}
                self.tools[str(call.get("id"))] = (str(function.get("name")), str(function.get("arguments")))


class RecordingProxy:
    """Listens on loopback while it is open; requests for an episode that is over are refused."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._episodes: dict[str, _ProxiedEpisode] = {}
        self._keys: dict[int, str] = {}
        # asyncio sets TCP_NODELAY only if the protocol is named; without it each answer takes 40 ms longer.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(_BACKLOG)
        self._clients: dict[int, httpx.AsyncClient] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._server = self._start()

    def open(self, episode: Episode) -> str:
        """The base_url of an episode."""
        key = secrets.token_urlsafe(12)
        self._episodes[key] = _ProxiedEpisode(episode)
        self._keys[id(episode)] = key
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/{key}/v1"

    def close(self, episode: Episode) -> None:
        """Called on the agents' loop when an episode has ended."""
        self._episodes.pop(self._keys.pop(id(episode), ""), None)
        client = self._clients.pop(id(episode), None)
        if client is not None:
            task = asyncio.get_running_loop().create_task(client.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def http_client(self, episode: Episode) -> httpx.AsyncClient:
        """For an agent that takes one. Each episode has its own: a shared pool is searched for every request."""
        client = async_http_client(library=_library_of_agents())
        self._clients[id(episode)] = client
        return client

    async def finish(self) -> None:
        """Called on the agents' loop when all episodes are done."""
        if self._closing:
            await asyncio.wait(self._closing, timeout=1.0)

    def stop(self) -> None:
        server, served = self._server
        server.should_exit = True
        wait([served], timeout=_STOP_S)
        self._socket.close()

    def _start(self) -> tuple[Any, Future[None]]:
        try:
            import uvicorn
            from starlette.applications import Starlette
            from starlette.routing import Route
        except ImportError:
            raise PrerequisiteError(
                "a workflow with run(data, base_url=...) needs starlette and uvicorn", "pip install 'rldbg[serve]'"
            ) from None
        application = Starlette(
            routes=[
                Route("/{key}/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/{key}/v1/completions", self._complete, methods=["POST"]),
                Route("/{key}/v1/responses", self._complete, methods=["POST"]),
                Route("/{key}/v1/messages", self._complete, methods=["POST"]),
                # Anthropic's client adds the version to a base_url that already has it.
                Route("/{key}/v1/v1/messages", self._complete, methods=["POST"]),
                Route("/{key}/v1/models", self._models, methods=["GET"]),
            ]
        )
        server = uvicorn.Server(
            uvicorn.Config(
                application, log_level="error", lifespan="off", backlog=_BACKLOG, timeout_graceful_shutdown=1
            )
        )
        return server, self._servers.network.submit(server.serve(sockets=[self._socket]))

    async def _models(self, _request: Request) -> Response:
        from starlette.responses import JSONResponse

        return JSONResponse({"object": "list", "data": [{"id": self._servers.model, "object": "model"}]})

    async def _complete(self, request: Request) -> Response:
        from starlette.responses import JSONResponse, StreamingResponse

        proxied = self._episodes.get(request.path_params["key"])
        if proxied is None:
            return _refused(404, "no such episode, or it has ended")
        try:
            body = await request.json()
        except ValueError as error:
            return _refused(400, f"the request is not JSON: {error}")
        if not isinstance(body, dict):
            return _refused(400, "the request is not a JSON object")
        path = "/v1/" + request.url.path.partition("/v1/")[2]
        protocol = path.rpartition("/")[2]
        try:
            if protocol == "completions":
                answered = await self._exchange(proxied, path, body)
                events = _stream(answered, path)
            else:
                asked = proxied.protocols.as_chat(protocol, body)
                chat = await self._exchange(proxied, CHAT, asked)
                answered, told = proxied.protocols.told(protocol, body, asked, chat)
                events = _named(told)
        except RequestError as error:
            return _refused(error.status, error.message)
        except RldbgError as error:
            status = getattr(error, "status", 0) or 502
            return _refused(status, f"{error.message} (try: {error.hint})")
        if body.get("stream"):
            return StreamingResponse(events, media_type="text/event-stream")
        return JSONResponse(answered)

    async def _exchange(self, proxied: _ProxiedEpisode, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        episode = proxied.episode
        proxied.hear(body.get("messages"))
        number, seed = episode.next_request()
        chat = path.endswith("chat/completions")
        defaults = {"temperature": episode.settings.temperature, "max_tokens": episode.settings.max_new_tokens}
        if "max_completion_tokens" in body:
            del defaults["max_tokens"]
        if seed is not None:
            defaults["seed"] = seed
        asked = {**defaults, **body, "model": self._servers.model, "logprobs": True if chat else 0, **TOKEN_IDS}
        asked.pop("stream_options", None)
        with episode.timeline.span("request", f"request {number}") as span:
            answered = await episode.exchange(number, {"path": path, **asked}, lambda: self._servers.post(path, asked))
            if episode.fault is not None:
                answered = episode.fault.body(number, answered)
            episode.keep(number, openai_answers(answered), span)
        proxied.answer(answered)
        return answered


def _refused(status: int, message: str) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": {"message": message, "type": "rldbg_rollout", "code": status}}, status_code=status)


async def _stream(answer: Mapping[str, Any], path: str) -> AsyncIterator[bytes]:
    """A whole answer in the form of a stream: the text in one piece, then the reason it ended."""
    chat = path.endswith("chat/completions")
    head = {name: answer.get(name) for name in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk" if chat else "text_completion"
    for choice in answer["choices"]:
        index = choice.get("index", 0)
        if chat:
            message = choice.get("message") or {}
            calls = [dict(call, index=place) for place, call in enumerate(message.get("tool_calls") or ())]
            delta = {"role": "assistant", "content": message.get("content")} | ({"tool_calls": calls} if calls else {})
            yield _event(head | {"choices": [{"index": index, "delta": delta, "finish_reason": None}]})
            last = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}
        else:
            last = {"index": index, "text": choice.get("text", ""), "finish_reason": choice.get("finish_reason")}
        yield _event(head | {"choices": [last]})
    yield b"data: [DONE]\n\n"


async def _named(events: Sequence[Mapping[str, Any]]) -> AsyncIterator[bytes]:
    for event in events:
        yield f"event: {event['type']}\n".encode() + _event(event)


def _event(body: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _library_of_agents() -> Any:
    """The HTTP library of the client that an agent hands to its SDK: None for httpx, unless Anthropic's is loaded and
    takes clients of httpx2 only, as it does since its version 2. OpenAI's takes either."""
    return getattr(sys.modules.get("anthropic._base_client"), "httpx2", None)
