"""What every family of control routes does to a backend, in one place; the families differ in names and forms."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from rldbg.inference.backend import Backend, PauseMode, WeightVersion
from rldbg.inference.protocols.http import Json, RequestHandler, body_of, fields_of, file_of
from rldbg.inference.request_error import RequestError

_NO_GROUP = (
    "this server does not join process groups: update the weights from disk, or POST them as a safetensors body to "
    "/update_weights"
)


@dataclass(frozen=True, slots=True)
class Control:
    backend: Backend

    async def pause(self, mode: str) -> None:
        if mode not in get_args(PauseMode):
            raise RequestError(f"mode is {mode!r}; it must be one of {', '.join(get_args(PauseMode))}")
        await self.backend.pause(mode)  # type: ignore[arg-type]

    async def from_disk(self, path: str, label: str | None, *, aborts: bool = False) -> WeightVersion:
        if not path:
            raise RequestError("model_path is missing: send the folder of the weights")
        if aborts:
            self.backend.abort(None)
        return await self.backend.load_folder(Path(path), label)

    async def from_body(self, request: Request, label: str | None) -> WeightVersion:
        """Weights as one safetensors file, which is the whole body."""
        async with file_of(request) as file:
            return await self.backend.load_file(file, label)

    async def name_version(self, request: Request) -> Response:
        """The route that gives the weights another label."""
        fields = await fields_of(request)
        label = fields.optional_text("new_version") or fields.optional_text("weight_version")
        if not label:
            raise RequestError("new_version is missing")
        if fields.flag("abort_all_requests"):
            self.backend.abort(None)
        await self.backend.name_version(label)
        return Json({"success": True, "message": f"weight version is {label}", "new_version": label})

    def refuse_group(self) -> None:
        raise RequestError(_NO_GROUP)

    async def no_group(self, request: Request) -> Response:
        """The route of anything that needs a process group."""
        await body_of(request)
        raise RequestError(_NO_GROUP)


def constant(answer: Any) -> RequestHandler:
    """A route that changes nothing here and always gives the answer that clients wait for."""

    async def handler(request: Request) -> Response:
        await fields_of(request)
        return Json(answer)

    return handler


def refused(message: str) -> RequestHandler:
    """A route of an engine that is answered by saying what to do instead."""

    async def handler(request: Request) -> Response:
        await body_of(request)
        raise RequestError(message)

    return handler
