"""How a protocol's handlers become routes: each is wrapped so that whatever it raises is answered in its form."""

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rldbg.training_service.bodies import Bodies
from rldbg.training_service.errors import InternalError, ServiceRequestError
from rldbg.training_service.service import TrainingService

_log = logging.getLogger(__name__)

ServiceHandler = Callable[[Request], Awaitable[Response]]
# (method, path under /api/v1, handler)
ServiceTable = tuple[tuple[str, str, ServiceHandler], ...]
ServiceErrorForm = Callable[[ServiceRequestError], Response]


class Handlers:
    """One half of a protocol; every handler either answers or raises a ServiceRequestError."""

    def __init__(self, service: TrainingService, bodies: Bodies) -> None:
        self._service = service
        self._bodies = bodies


def routes(table: ServiceTable, form: ServiceErrorForm) -> list[Route]:
    return [Route(f"/api/v1{path}", _guarded(handler, form), methods=[method]) for method, path, handler in table]


def _guarded(handler: ServiceHandler, form: ServiceErrorForm) -> ServiceHandler:
    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except ServiceRequestError as error:
            return form(error)
        except Exception as error:  # noqa: BLE001 - a request handler answers, whatever happens
            _log.exception("%s %s failed", request.method, request.url.path)
            return form(InternalError(f"{type(error).__name__}: {error}"))

    return guarded
