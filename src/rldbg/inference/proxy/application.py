"""The proxy's web application: every request goes to the engine as it came, every answer comes back as it was given.

Requests that generate are asked for token ids and log probs as well; an engine that refuses them gets the request
again as the client wrote it.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rldbg.core import async_http_client
from rldbg.inference.deployment import PROXY_HEALTH
from rldbg.inference.proxy.captured import AnswerReader
from rldbg.inference.proxy.generation_recorder import GenerationRecorder
from rldbg.inference.proxy.protocol_readers import UPDATES, readers
from rldbg.inference.request_error import RequestError

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger(__name__)
_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]
_OWN_HEADERS = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailers", "transfer-encoding",
        "upgrade", "host", "content-length", "accept-encoding",
    }
)  # fmt: skip
_REFUSED = (400, 422)
# An answer longer than this passes by, but is not recorded.
_MOST_BYTES = 256 << 20
_CONNECTIONS = 4096
_WRITE_S = 2.0


def build_proxy(
    upstream: str, recorder: GenerationRecorder, *, guard: list[Middleware], at_end: Callable[[], None]
) -> Starlette:
    client = async_http_client(upstream, connections=_CONNECTIONS)

    @asynccontextmanager
    async def lifespan(_application: Starlette) -> AsyncIterator[None]:
        writing = asyncio.create_task(_write_regularly(recorder))
        yield
        writing.cancel()
        await client.aclose()
        recorder.close()
        at_end()

    proxy = Proxy(client, upstream, recorder)
    return Starlette(
        routes=[
            Route(PROXY_HEALTH, _health, methods=["GET"]),
            Route("/{path:path}", proxy.pass_on, methods=_METHODS),
        ],
        lifespan=lifespan,
        middleware=guard,
    )


async def _health(_request: Request) -> Response:
    """Whether the proxy itself runs; /health is the engine's."""
    return Response()


async def _write_regularly(recorder: GenerationRecorder) -> None:
    while True:
        await asyncio.sleep(_WRITE_S)
        recorder.write()


class Proxy:
    def __init__(self, client: "httpx.AsyncClient", upstream: str, recorder: GenerationRecorder) -> None:
        self._client = client
        self._upstream = upstream
        self._recorder = recorder
        self._readers = readers()

    async def pass_on(self, request: Request) -> Response:
        import httpx

        reader = self._readers.get(request.url.path) if request.method in ("POST", "PUT") else None
        try:
            if reader is not None:
                return await self._generation(request, reader)
            if request.url.path in UPDATES:
                return await self._update(request)
            answer = await self._send(request, request.stream())
            if request.method == "POST" and answer.is_success:
                self._recorder.passed(request.url.path)
        except httpx.HTTPError as error:
            message = f"the engine at {self._upstream} does not answer: {type(error).__name__}: {error}"
            _log.warning("%s", message)
            return JSONResponse({"error": {"message": message, "code": 502}}, 502)
        except ClientDisconnect:
            return Response(status_code=499)
        return _streamed(answer, answer.aiter_raw())

    async def _update(self, request: Request) -> Response:
        """New weights: what is generated from here on belongs to the next policy version."""
        label, content = request.query_params.get("weight_version"), request.stream()
        if "json" in request.headers.get("content-type", ""):
            body = await request.body()
            given = (_object(body) or {}).get("weight_version")
            label = label if given is None else str(given)
            answer = await self._send(request, body)
        else:
            answer = await self._send(request, content)
        if answer.is_success:
            self._recorder.write()
            self._recorder.weights_changed(label)
        return _streamed(answer, answer.aiter_raw())

    async def _generation(self, request: Request, reader: AnswerReader) -> Response:
        content = await request.body()
        body = _object(content)
        if body is None:
            answer = await self._send(request, content)
            return _streamed(answer, answer.aiter_raw())
        number = self._recorder.arrived()
        whole = reader.completed(body)
        answer = await self._send(request, content if whole is body else json.dumps(whole).encode())
        if whole is not body and answer.status_code in _REFUSED:
            await answer.aclose()
            answer = await self._send(request, content)
        if not answer.is_success:
            return _streamed(answer, answer.aiter_raw())
        return _streamed(answer, self._listening(answer, body, reader, _Place(request.url.path, number)))

    async def _send(self, request: Request, content: bytes | AsyncIterator[bytes]) -> "httpx.Response":
        headers = [(name, value) for name, value in request.headers.items() if name not in _OWN_HEADERS]
        # Compressed answers could not be read as they pass.
        headers.append(("accept-encoding", "identity"))
        if request.method in ("GET", "HEAD", "DELETE", "OPTIONS") and not isinstance(content, bytes):
            content = await request.body()
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        sent = self._client.build_request(request.method, path, headers=headers, content=content)
        return await self._client.send(sent, stream=True)

    async def _listening(
        self, answer: "httpx.Response", request: Mapping[str, Any], reader: AnswerReader, place: "_Place"
    ) -> AsyncIterator[bytes]:
        """Passes the answer on and keeps a copy. Of a stream that ends early, because the client left or the engine
        died, what had arrived is recorded, so that a replay can end in the same way."""
        copy = bytearray()
        try:
            async for chunk in answer.aiter_raw():
                if len(copy) <= _MOST_BYTES:
                    copy += chunk
                yield chunk
        finally:
            self._keep(answer, request, reader, place, bytes(copy))

    def _keep(
        self, answer: "httpx.Response", request: Mapping[str, Any], reader: AnswerReader, place: "_Place", copy: bytes
    ) -> None:
        streamed = "event-stream" in answer.headers.get("content-type", "")
        try:
            whole = reader.join(_events(copy)) if streamed else json.loads(copy)
            self._recorder.add(list(reader.read(request, whole)), place.route, place.number)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RequestError) as error:
            self._recorder.cannot_record(place.route)
            _log.warning("an answer of %s cannot be recorded: %s: %s", place.route, type(error).__name__, error)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a request came in, and as which."""

    route: str
    number: int


def _streamed(answer: "httpx.Response", content: AsyncIterator[bytes]) -> Response:
    async def closing() -> AsyncIterator[bytes]:
        try:
            async for chunk in content:
                yield chunk
        finally:
            if isinstance(content, AsyncGenerator):
                await content.aclose()
            await answer.aclose()

    headers = {name: value for name, value in answer.headers.items() if name not in _OWN_HEADERS}
    if "content-length" in answer.headers:
        headers["content-length"] = answer.headers["content-length"]
    return StreamingResponse(closing(), answer.status_code, headers)


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _events(content: bytes) -> list[dict[str, Any]]:
    """The JSON objects of server-sent events."""
    lines = (line[5:].strip() for line in content.splitlines() if line.startswith(b"data:"))
    return [body for line in lines if line != b"[DONE]" and (body := _object(line)) is not None]
