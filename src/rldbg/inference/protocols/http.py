"""What all protocols share: reading bodies within a limit, answering errors, and noticing clients that have
disconnected."""

import asyncio
import json
import logging
import math
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rldbg.inference.backend import Backend
from rldbg.inference.generation import GenerationJob, Outcome, PendingGeneration
from rldbg.inference.json_body import BodyError, parse_object
from rldbg.inference.protocols.fields import Fields
from rldbg.inference.protocols.route_fields import QUERY_FIELDS, ROUTE_FIELDS, check_fields
from rldbg.inference.request_error import RequestError

_log = logging.getLogger(__name__)

JSON_LIMIT_BYTES = 64 << 20
WEIGHTS_LIMIT_BYTES = 64 << 30
# A client that has left gets no answer; the status is only seen in logs.
_LEFT = 499

RequestHandler = Callable[[Request], Awaitable[Response]]
# (methods, path, handler), methods separated by a blank
RouteTable = Sequence[tuple[str, str, RequestHandler]]
ErrorForm = Callable[[RequestError], Response]


class Json(JSONResponse):
    """JSON that every reader takes: NaN and infinities, which JSON has not, become null."""

    def render(self, content: Any) -> bytes:
        try:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        except ValueError:
            return json.dumps(_finite(content), separators=(",", ":")).encode()


def routes(table: RouteTable, form: ErrorForm) -> list[Route]:
    return [Route(path, _guarded(path, handler, form), methods=methods.split()) for methods, path, handler in table]


def _guarded(path: str, handler: RequestHandler, form: ErrorForm) -> RequestHandler:
    async def guarded(request: Request) -> Response:
        try:
            check_fields(request.query_params, QUERY_FIELDS.get(path, {}), "query parameter ")
            return await handler(request)
        except RequestError as error:
            return form(error)
        except ClientDisconnect:
            return Response(status_code=_LEFT)
        except Exception as error:  # noqa: BLE001 - a request handler answers, whatever happens
            _log.exception("%s %s failed", request.method, request.url.path)
            return form(RequestError(f"{type(error).__name__}: {error}", 500))

    return guarded


async def body_of(request: Request) -> Mapping[str, Any]:
    """The body as a JSON object; an empty one is an empty object. Nothing larger than the limit is ever held."""
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > JSON_LIMIT_BYTES:
            raise RequestError(f"the request is larger than {JSON_LIMIT_BYTES >> 20} MiB", 413)
    try:
        return parse_object(content)
    except BodyError as error:
        raise RequestError(str(error)) from error


async def fields_of(request: Request) -> Fields:
    """The body's fields, none of which asks for what the route does not do."""
    body = await body_of(request)
    check_fields(body, ROUTE_FIELDS.get(request.scope["path"], {}))
    return Fields(body)


@asynccontextmanager
async def file_of(request: Request) -> AsyncIterator[Path]:
    """The body as a file that lasts as long as the context; weights need not fit into memory twice."""
    with tempfile.TemporaryDirectory(prefix="rldbg-weights-") as folder:
        file = Path(folder) / "weights.safetensors"
        size = 0
        with open(file, "wb") as output:
            async for chunk in request.stream():
                size += len(chunk)
                if size > WEIGHTS_LIMIT_BYTES:
                    raise RequestError(f"the weights are larger than {WEIGHTS_LIMIT_BYTES >> 30} GiB", 413)
                await asyncio.to_thread(output.write, chunk) if len(chunk) > 1 << 20 else output.write(chunk)
        yield file


def submit_all(backend: Backend, jobs: Sequence[GenerationJob], *, streams: bool = False) -> list[PendingGeneration]:
    """Starts all jobs of a request, or none: what was started before one is refused is aborted."""
    answers: list[PendingGeneration] = []
    try:
        for job in jobs:
            answers.append(backend.submit(job, streams=streams))
    except RequestError:
        for answer in answers:
            backend.abort(answer.job.id)
        raise
    return answers


async def outcomes(request: Request, backend: Backend, answers: Sequence[PendingGeneration]) -> list[Outcome]:
    """The outcome of each job; if the client disconnects first, they are aborted."""
    finished = asyncio.gather(*(answer.outcome() for answer in answers))
    left = asyncio.ensure_future(_left(request))
    with aborted_if_left(backend, answers):
        try:
            await asyncio.wait((finished, left), return_when=asyncio.FIRST_COMPLETED)
            if not finished.done():
                raise ClientDisconnect
            return list(finished.result())
        finally:
            left.cancel()
            finished.cancel()


@contextmanager
def aborted_if_left(backend: Backend, answers: Sequence[PendingGeneration]) -> Iterator[None]:
    """Whatever is not finished when the context ends is not computed any further."""
    try:
        yield
    finally:
        for answer in answers:
            if not answer.done:
                backend.abort(answer.job.id)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def events(
    lines: AsyncIterator[Mapping[str, Any]],
    form: Callable[[RequestError], Mapping[str, Any]],
    *,
    named: bool = False,
) -> Response:
    """Server-sent events: closed by [DONE], or `named` by their type. An error is the last one."""

    def written(line: Mapping[str, Any]) -> bytes:
        name = f"event: {line['type']}\n".encode() if named else b""
        return name + b"data: " + Json(None).render(line) + b"\n\n"

    async def stream() -> AsyncIterator[bytes]:
        try:
            async for line in lines:
                yield written(line)
        except RequestError as error:
            yield written(form(error))
        if not named:
            yield b"data: [DONE]\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
