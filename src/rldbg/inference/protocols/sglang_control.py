"""SGLang's control routes: health, descriptions, pause and continue, abort, weights."""

import asyncio
import base64
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from rldbg.algorithms import LogprobMode
from rldbg.inference.backend import Backend, WeightVersion
from rldbg.inference.generation import GenerationJob, SamplingSettings
from rldbg.inference.protocols.control import Control, constant, refused
from rldbg.inference.protocols.generation_jobs import new_id
from rldbg.inference.protocols.http import Json, RouteTable, fields_of, outcomes
from rldbg.inference.request_error import RequestError
from rldbg.inference.serialized_tensors import named_tensors
from rldbg.inference.weight_groups import WeightGroups
from rldbg.version import __version__

# SGLang's own name for a group that was not named.
_GROUP = "weight_update_group"
_VLLM_MODES = {"raw": "raw_logprobs", "sampled": "processed_logprobs"}
_NO_IPC = "CUDA memory of other processes is not read: use /update_weights_from_disk or /update_weights_from_tensor"
_NO_ADAPTERS = "adapters are not supported here: merge them, and update the whole weights"


class SglangControl:
    def __init__(self, backend: Backend, mode: LogprobMode) -> None:
        self._backend = backend
        self._mode = mode
        self._control = Control(backend)
        self._groups = WeightGroups()

    def table(self) -> RouteTable:
        return (
            ("GET", "/health", self.health),
            ("GET", "/health_generate", self.health_generate),
            ("GET", "/server_info", self.server_info),
            ("GET", "/get_server_info", self.server_info),
            ("GET", "/model_info", self.model_info),
            ("GET", "/get_model_info", self.model_info),
            ("GET POST", "/get_weight_version", self.weight_version),
            ("POST", "/update_weight_version", self._control.name_version),
            ("GET", "/weight_fingerprints", self.weight_fingerprints),
            ("POST", "/pause_generation", self.pause),
            ("POST", "/continue_generation", self.resume),
            ("POST", "/abort_request", self.abort),
            ("GET POST", "/flush_cache", self.flush_cache),
            ("POST", "/update_weights_from_disk", self.from_disk),
            ("POST", "/update_weights_from_tensor", self.from_tensor),
            ("POST", "/init_weights_update_group", self.join_group),
            ("POST", "/update_weights_from_distributed", self.from_distributed),
            ("POST", "/destroy_weights_update_group", self.leave_group),
            ("POST", "/update_weights_from_ipc", refused(_NO_IPC)),
            ("POST", "/load_lora_adapter", refused(_NO_ADAPTERS)),
            ("POST", "/load_lora_adapter_from_tensors", refused(_NO_ADAPTERS)),
            ("POST", "/unload_lora_adapter", refused(_NO_ADAPTERS)),
            # Memory stays where it is: the server has no other use for it.
            ("POST", "/release_memory_occupation", constant(None)),
            ("POST", "/resume_memory_occupation", constant(None)),
        )

    async def health(self, _request: Request) -> Response:
        return Response(status_code=200 if self._backend.status().healthy else 503)

    async def health_generate(self, request: Request) -> Response:
        """Healthy means that a token can be generated; while paused this is not possible, and the answer says so."""
        if self._backend.status().paused:
            raise RequestError("generation is paused", 503)
        job = GenerationJob(new_id("health-"), (0,), SamplingSettings(max_new_tokens=1, temperature=0), seed=0)
        await outcomes(request, self._backend, [self._backend.submit(job)])
        return Response()

    async def weight_fingerprints(self, _request: Request) -> Response:
        """Our own route: fingerprints of the loaded weights, so that a trainer can record them next to what it sent."""
        held = await self._backend.fingerprints()
        return Json({"version": self._backend.status().version.label, "tensors": [item.to_dict() for item in held]})

    async def server_info(self, _request: Request) -> Response:
        card = self._backend.card
        return Json(
            {
                "model_path": card.path,
                "served_model_name": card.name,
                "tokenizer_path": card.path,
                "dtype": card.dtype,
                "context_length": card.max_length,
                "tp_size": 1,
                "pp_size": 1,
                "dp_size": 1,
                "disaggregation_mode": "null",
                "enable_memory_saver": False,
                "version": f"rldbg {__version__}",
                # vLLM's answer by the same path: TRL reads here whether weights can go through NCCL, and what log probs
                # are.
                "vllm_config": {
                    "weight_transfer_config": None,
                    "model_config": {"logprobs_mode": _VLLM_MODES.get(self._mode, self._mode)},
                },
                # How weights come instead: /start_weight_update, /update_weights with a safetensors body,
                # /finish_weight_update.
                "weights_over_http": True,
                "internal_states": [dict(self._backend.summary())],
            }
        )

    async def model_info(self, _request: Request) -> Response:
        card = self._backend.card
        return Json(
            {
                "model_path": card.path,
                "served_model_name": card.name,
                "tokenizer_path": card.path,
                "is_generation": True,
                "weight_version": self._backend.status().version.label,
                "max_model_len": card.max_length,
                "vocab_size": card.vocabulary_size,
            }
        )

    async def weight_version(self, request: Request) -> Response:
        await fields_of(request)
        return Json({"weight_version": self._backend.status().version.label})

    async def pause(self, request: Request) -> Response:
        await self._control.pause((await fields_of(request)).text("mode", "abort"))
        return Json({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request: Request) -> Response:
        await fields_of(request)
        await self._backend.resume()
        return Json({"message": "Generation continued successfully.", "status": "ok"})

    async def abort(self, request: Request) -> Response:
        fields = await fields_of(request)
        rid, everything = fields.optional_text("rid"), fields.flag("abort_all")
        if not rid and not everything:
            raise RequestError("no request given to abort: send rid or abort_all")
        self._backend.abort(None if everything else rid, with_samples=True)
        return Response()

    async def flush_cache(self, request: Request) -> Response:
        await fields_of(request)
        status = self._backend.status()
        if status.running or status.waiting:
            return PlainTextResponse("requests are in progress; the cache is not flushed\n", 400)
        return PlainTextResponse("Cache flushed.\n")

    async def from_disk(self, request: Request) -> Response:
        fields = await fields_of(request)
        try:
            version = await self._control.from_disk(
                fields.text("model_path"),
                fields.optional_text("weight_version"),
                aborts=fields.flag("abort_all_requests"),
            )
        except RequestError as error:
            return Json({"success": False, "message": error.message, "num_paused_requests": 0}, error.status)
        return Json(_updated(version) | {"num_paused_requests": 0})

    async def from_tensor(self, request: Request) -> Response:
        """The tensors as a safetensors file, the whole body or base64 in the JSON field `safetensors`; or pickled."""
        if "json" not in request.headers.get("content-type", ""):
            label = request.query_params.get("weight_version")
            return Json(_updated(await self._control.from_body(request, label)))
        fields = await fields_of(request)
        label, load_format = fields.optional_text("weight_version"), fields.optional_text("load_format")
        if not fields.has("safetensors"):
            parts = fields.raw("serialized_named_tensors")
            if not isinstance(parts, list):
                raise RequestError("serialized_named_tensors must be a list of base64 strings")
            tensors = await asyncio.to_thread(named_tensors, parts, load_format)
            return Json(_updated(await self._loaded(tensors, label)))
        try:
            content = base64.b64decode(fields.text("safetensors"), validate=True)
        except ValueError as error:
            raise RequestError(f"safetensors is not base64: {error}") from error
        with tempfile.TemporaryDirectory(prefix="rldbg-weights-") as folder:
            file = Path(folder) / "weights.safetensors"
            file.write_bytes(content)
            version = await self._backend.load_file(file, label)
        return Json(_updated(version))

    async def join_group(self, request: Request) -> Response:
        fields = await fields_of(request)
        await self._groups.join(
            fields.text("group_name", _GROUP),
            backend=fields.text("backend", "nccl"),
            address=fields.text("master_address"),
            port=fields.integer("master_port", 0, least=1, most=65535),
            rank=fields.integer("rank_offset", 0),
            size=fields.integer("world_size", 0),
        )
        return Json({"success": True, "message": "joined the group"})

    async def from_distributed(self, request: Request) -> Response:
        fields = await fields_of(request)
        lists = {name: fields.raw(name) for name in ("names", "dtypes", "shapes")}
        wrong = next((name for name, value in lists.items() if not isinstance(value, list)), None)
        if wrong is not None or not all(isinstance(name, str) for name in lists["names"]):
            raise RequestError(f"{wrong or 'names'} must be a list with one entry per tensor")
        in_one_bucket = fields.optional_text("load_format") == "flattened_bucket"
        group, label = fields.text("group_name", _GROUP), fields.optional_text("weight_version")
        aborts = fields.flag("abort_all_requests")
        tensors = await self._groups.receive(group, **lists, in_one_bucket=in_one_bucket)
        if aborts:
            self._backend.abort(None)
        return Json(_updated(await self._loaded(tensors, label)))

    async def leave_group(self, request: Request) -> Response:
        left = self._groups.leave((await fields_of(request)).text("group_name", _GROUP))
        return Json({"success": True, "message": "left the group" if left else "there was no such group"})

    async def _loaded(self, tensors: Mapping[str, Any], label: str | None) -> WeightVersion:
        """A bucket that is empty for this rank changes nothing; its version counts."""
        if tensors:
            return await self._backend.load_tensors(tensors, label)
        return await self._backend.name_version(label or self._backend.status().version.label)


def _updated(version: WeightVersion) -> dict[str, Any]:
    return {"success": True, "message": f"weight version is {version.label}", "weight_version": version.label}
