"""The web application: both protocols under /api/v1, their forms of errors, and a health check."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rldbg.training_service.bodies import LIMIT_BYTES, Bodies
from rldbg.training_service.errors import NotFoundError, ServiceRequestError
from rldbg.training_service.routing import routes
from rldbg.training_service.service import TrainingService
from rldbg.training_service.tinker_rest import TinkerRest
from rldbg.training_service.tinker_sampling import TinkerSampling
from rldbg.training_service.tinker_training import TinkerTraining
from rldbg.training_service.weaver_sampling import WeaverSampling
from rldbg.training_service.weaver_training import WeaverTraining


def build_application(service: TrainingService, *, limit_bytes: int = LIMIT_BYTES) -> Starlette:
    bodies = Bodies(limit_bytes)

    @asynccontextmanager
    async def lifespan(_application: Starlette) -> AsyncIterator[None]:
        yield
        service.close()

    return Starlette(
        routes=[
            Route("/api/v1/healthz", _health, methods=["GET"]),
            *routes(WeaverTraining(service, bodies).table(), weaver_error),
            *routes(WeaverSampling(service, bodies).table(), weaver_error),
            *routes(TinkerTraining(service, bodies).table(), tinker_error),
            *routes(TinkerSampling(service, bodies).table(), tinker_error),
            *routes(TinkerRest(service, bodies).table(), tinker_error),
        ],
        exception_handlers={HTTPException: _no_route},
        lifespan=lifespan,
    )


def weaver_error(error: ServiceRequestError) -> Response:
    body = {"error": error.code, "message": error.message, "retryable": False, "details": {}}
    return JSONResponse(body, error.status)


def tinker_error(error: ServiceRequestError) -> Response:
    """The client retries 408, 409, 429 and 5xx for minutes; errors that a retry cannot fix get another status."""
    category = "server" if error.status >= 500 else "user"
    status = 400 if error.status in (409, 500) else error.status
    return JSONResponse({"error": error.message, "category": category}, status)


async def _health(_request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    missing = NotFoundError(f"{request.method} {request.url.path} is not part of this service: {error.detail}")
    answer = weaver_error(missing)
    answer.status_code = error.status_code
    return answer
