"""The web application: every protocol's routes over one backend, and the token that guards them."""

import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rldbg.algorithms import LogprobMode
from rldbg.inference.backend import Backend
from rldbg.inference.deployment import PROXY_HEALTH
from rldbg.inference.protocols.http import Json, routes
from rldbg.inference.protocols.messages import MessagesProtocol, messages_error
from rldbg.inference.protocols.openai import OpenAi, openai_error
from rldbg.inference.protocols.responses import Responses
from rldbg.inference.protocols.sglang import SglangGeneration, sglang_error
from rldbg.inference.protocols.sglang_control import SglangControl
from rldbg.inference.protocols.slime import Replicas, Slime
from rldbg.inference.protocols.trl import Trl, trl_error
from rldbg.inference.protocols.vllm import Areal, Vllm, areal_error
from rldbg.inference.request_error import RequestError

# Health checks need no token.
_OPEN = ("/health", PROXY_HEALTH)


@dataclass(frozen=True, slots=True)
class Service:
    """How to serve a backend: the mode of its log probs, the token clients must show, and the other replicas."""

    logprob_mode: LogprobMode = "temperature"
    token: str | None = None
    replicas: Replicas = lambda: ()
    at_end: Callable[[Backend], None] = lambda _backend: None


def build_application(backend: Backend, service: Service | None = None) -> Starlette:
    service = service or Service()
    mode = service.logprob_mode

    @asynccontextmanager
    async def lifespan(_application: Starlette) -> AsyncIterator[None]:
        yield
        await backend.close()
        service.at_end(backend)

    return Starlette(
        routes=[
            *routes(SglangGeneration(backend, mode).table(), sglang_error),
            *routes(SglangControl(backend, mode).table(), sglang_error),
            *routes(OpenAi(backend, mode).table(), openai_error),
            *routes(Responses(backend, mode).table(), openai_error),
            *routes(MessagesProtocol(backend, mode).table(), messages_error),
            *routes(Areal(backend).table(), areal_error),
            *routes(Vllm(backend, mode).table(), openai_error),
            *routes(Slime(backend, service.replicas).table(), sglang_error),
            *routes(Trl(backend).table(), trl_error),
        ],
        exception_handlers={HTTPException: _no_route},
        middleware=token_guard(service.token),
        lifespan=lifespan,
    )


def token_guard(token: str | None) -> list[Middleware]:
    return [Middleware(TokenGuard, token=token)] if token else []


class TokenGuard:
    """Lets a request pass that shows the token, as a bearer token or as X-API-Key; health needs none."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN or self._shown(scope):
            await self._app(scope, receive, send)
            return
        answer = openai_error(RequestError("a token is required: Authorization: Bearer TOKEN", 401))
        await answer(scope, receive, send)

    def _shown(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        bearer = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        return any(hmac.compare_digest(value, self._token) for value in (bearer, headers.get(b"x-api-key", b"")))


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path} is not part of this server: {error.detail}"
    return Json({"error": {"message": message, "code": error.status_code}}, error.status_code)
