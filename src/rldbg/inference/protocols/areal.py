"""The routes AReaL adds to a vLLM server, and those its clients call beside completions."""

from starlette.requests import Request
from starlette.responses import Response

from rldbg.inference.backend import Backend
from rldbg.inference.generation import RequestError
from rldbg.inference.protocols.control import Control
from rldbg.inference.protocols.fields import Fields
from rldbg.inference.protocols.http import Json, Table, body_of


def areal_error(error: RequestError) -> Response:
    return Json({"success": False, "message": error.message}, error.status)


class Areal:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._control = Control(backend)

    def table(self) -> Table:
        return (
            ("POST", "/areal_pause_generation", self.pause),
            ("POST", "/areal_continue_generation", self.resume),
            ("POST", "/areal_update_weights", self.update_weights),
            ("POST", "/areal_update_weights_lora", self.no_adapters),
            ("POST", "/areal_init_weights_update_group", self._control.no_group),
            ("POST", "/areal_set_update_weight_meta", self._control.no_group),
            ("POST", "/areal_set_update_weight_meta_lora", self.no_adapters),
            ("POST", "/areal_update_weights_xccl", self._control.no_group),
            ("POST", "/areal_update_weights_lora_xccl", self.no_adapters),
        )

    async def pause(self, request: Request) -> Response:
        """What is under way ends with what it has; the client asks for the rest afterwards."""
        await body_of(request)
        await self._backend.pause("abort")
        return Json({"success": True, "message": "generation is paused"})

    async def resume(self, request: Request) -> Response:
        await body_of(request)
        await self._backend.resume()
        return Json({"success": True, "message": "generation resumed"})

    async def update_weights(self, request: Request) -> Response:
        fields = Fields(await body_of(request))
        label = fields.optional_text("weight_version") or fields.optional_text("version")
        version = await self._control.from_disk(fields.text("model_path"), label)
        return Json({"success": True, "message": f"weight version is {version.label}"})

    async def no_adapters(self, request: Request) -> Response:
        await body_of(request)
        raise RequestError("adapters are not supported here: update the whole weights from disk")
