"""The JSON protocol of docs/training_service.md, first half: sessions, models, training, snapshots."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rldbg.training_service import weaver_json
from rldbg.training_service.errors import ServiceRequestError
from rldbg.training_service.losses import LossSettings
from rldbg.training_service.models import AdamSettings
from rldbg.training_service.operations import Operation
from rldbg.training_service.request_order import digest_of, sequence_number
from rldbg.training_service.routing import Handlers, ServiceTable
from rldbg.training_service.service import ModelEntry
from rldbg.training_service.tensor_pack import read_request

_DEFAULT_ADAM = AdamSettings(1e-4, 0.9, 0.95, 1e-8, 0.01, 1.0)
# An operation that is done this soon is answered as done, which spares the client its first poll.
_GRACE_S = 0.2
_LONGEST_WAIT_S = 30.0


async def accepted(operation: Operation, present: Callable[[Any], Any]) -> Response:
    """202 with the operation, or with its outcome if that comes at once."""
    operation.present = present
    await operation.wait(_GRACE_S)
    return JSONResponse(weaver_json.operation_json(operation), 202)


class WeaverTraining(Handlers):
    def table(self) -> ServiceTable:
        return (
            ("POST", "/sessions", self.create_session),
            ("GET", "/sessions/{session}", self.get_session),
            ("POST", "/sessions/{session}/heartbeat", self.heartbeat),
            ("POST", "/sessions/{session}/metrics", self.client_metrics),
            ("POST", "/sessions/{session}/models", self.create_model),
            ("GET", "/supported-models", self.supported_models),
            ("GET", "/models", self.list_models),
            ("GET", "/models/{model}", self.get_model),
            ("POST", "/models/{model}/forward-backward-passes", self.forward_backward),
            ("POST", "/models/{model}/forward-passes", self.forward),
            ("POST", "/models/{model}/optimizer-steps", self.optimizer_step),
            ("POST", "/models/{model}/export-sampler", self.export_sampler),
            ("POST", "/models/{model}/checkpoints", self.save_checkpoint),
            ("GET", "/models/{model}/checkpoints", self.list_checkpoints),
            ("POST", "/models/{model}/load", self.load_checkpoint),
            ("POST", "/models/{model}/terminate", self.terminate),
            ("GET", "/models/{model}/weights", self.get_weights),
            ("PUT", "/models/{model}/weights", self.put_weights),
            ("GET", "/operations/{operation}", self.get_operation),
        )

    async def create_session(self, request: Request) -> Response:
        body = await self._bodies.json(request)
        answer = {"id": self._service.create_session(), "status": "active"}
        if "scheduling_policy" in body:
            answer["scheduling_policy"] = body["scheduling_policy"]
        return JSONResponse(answer, 201)

    async def get_session(self, request: Request) -> Response:
        """Both protocols ask by this path: one wants the status, the other the models."""
        session = request.path_params["session"]
        self._service.touch_session(session)
        models = [entry.model_id for entry in self._service.models if entry.model_id.startswith(f"{session}:")]
        return JSONResponse({"id": session, "status": "active", "training_run_ids": models, "sampler_ids": []})

    async def heartbeat(self, request: Request) -> Response:
        self._service.touch_session(request.path_params["session"])
        return JSONResponse({"status": "ok"})

    async def client_metrics(self, request: Request) -> Response:
        self._service.touch_session(request.path_params["session"])
        metrics = (await self._bodies.json(request)).get("metrics")
        return JSONResponse({"accepted": len(metrics) if isinstance(metrics, list) else 0}, 202)

    async def create_model(self, request: Request) -> Response:
        body = await self._bodies.json(request)
        seed, base_model = body.get("seed", 0), body.get("base_model")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ServiceRequestError("seed is not an integer")
        if isinstance(base_model, str):
            await asyncio.to_thread(self._service.bases.describe, base_model)
        entry = self._service.create_model(
            request.path_params["session"],
            body.get("model_seq_id", 1),
            base_model,
            seed=seed,
            lora=weaver_json.lora_of(body),
            metadata=body.get("user_metadata"),
        )
        await entry.creation.outcome()
        return JSONResponse(weaver_json.model_json(entry), 201)

    async def list_models(self, _request: Request) -> Response:
        items = [weaver_json.model_json(entry) for entry in self._service.models]
        return JSONResponse({"items": items, "pagination": {"total_count": len(items)}})

    async def supported_models(self, _request: Request) -> Response:
        items = [{"id": name, "name": name, "status": "available"} for name in self._service.bases.names]
        return JSONResponse({"items": items, "pagination": {"total_count": len(items)}})

    async def get_model(self, request: Request) -> Response:
        return JSONResponse(weaver_json.model_json(self._model(request)))

    async def terminate(self, request: Request) -> Response:
        await self._service.remove_model(request.path_params["model"]).outcome()
        return JSONResponse({"status": "terminated"})

    async def forward_backward(self, request: Request) -> Response:
        return await self._pass(request, "forward_backward_input", backward=True)

    async def forward(self, request: Request) -> Response:
        return await self._pass(request, "forward_input", backward=False)

    async def _pass(self, request: Request, key: str, *, backward: bool) -> Response:
        entry = self._model(request)
        content = await self._bodies.content(request)
        kind = request.headers.get("content-type", "")
        body = await asyncio.to_thread(read_request, kind, content, self._bodies.limit_bytes)
        payload = weaver_json.payload_of(body)
        number, digest = sequence_number(payload), digest_of(key, content)
        with self._service.using_number(entry, number, digest):
            inputs = payload.get(key)
            if not isinstance(inputs, Mapping):
                raise ServiceRequestError(f"payload has no {key}")
            loss = LossSettings.parse(inputs.get("loss_fn"), inputs.get("loss_fn_config"))
            datums = await asyncio.to_thread(weaver_json.datums_of, inputs.get("data"), entry)
            operation = self._service.run_pass(entry, number, digest, loss, datums, backward=backward)
        return await accepted(operation, lambda result: weaver_json.pass_json(result, datums))

    async def optimizer_step(self, request: Request) -> Response:
        entry = self._model(request)
        payload = weaver_json.payload_of(await self._bodies.json(request))
        number, digest = sequence_number(payload), digest_of("optim_step", payload)
        with self._service.using_number(entry, number, digest):
            adam = AdamSettings.parse(payload.get("adam_params", {}), _DEFAULT_ADAM)
            operation = self._service.optimizer_step(entry, number, digest, adam)
        return await accepted(operation, lambda metrics: {"metrics": metrics})

    async def export_sampler(self, request: Request) -> Response:
        entry = self._model(request)
        body = await self._bodies.json(request)
        number, digest = sequence_number(body), digest_of("export", body)
        with self._service.using_number(entry, number, digest):
            name, ttl_s = weaver_json.name_of(body, "path"), weaver_json.lifetime_of(body)
            operation = self._service.save(
                entry, number, digest, purpose="sampler", name=name, ttl_s=ttl_s, overwrite=True, kind="sampling"
            )
        return await accepted(operation, weaver_json.snapshot_json)

    async def save_checkpoint(self, request: Request) -> Response:
        entry = self._model(request)
        body = await self._bodies.json(request)
        kind = body.get("type", "weight")
        if kind not in ("weight", "weight_and_optimizer", "sampling"):
            raise ServiceRequestError(f"checkpoint type {kind!r} is not one of weight, weight_and_optimizer, sampling")
        saved = await asyncio.to_thread(self._service.snapshots.of_model, entry.model_id)
        operation = self._service.save(
            entry,
            None,
            b"",
            purpose="sampler" if kind == "sampling" else "weights",
            name=weaver_json.name_of(body, "name") or f"checkpoint-{len(saved)}",
            with_optimizer=kind == "weight_and_optimizer",
            ttl_s=weaver_json.lifetime_of(body),
            kind=kind,
        )
        return await accepted(operation, weaver_json.snapshot_json)

    async def list_checkpoints(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._service.snapshots.of_model, request.path_params["model"])
        return JSONResponse({"items": [weaver_json.snapshot_json(item) for item in found if not item.ephemeral]})

    async def load_checkpoint(self, request: Request) -> Response:
        entry = self._model(request)
        body = await self._bodies.json(request)
        with_optimizer = bool(body.get("include_optimizer", False))
        operation = self._service.load(entry, None, b"", body.get("path"), with_optimizer=with_optimizer)
        return await accepted(operation, weaver_json.snapshot_json)

    async def get_weights(self, request: Request) -> Response:
        path = request.query_params.get("path")
        if path is None:
            content = await self._service.weights(self._model(request)).outcome()
        else:
            file = self._service.snapshots.weights_file(self._service.snapshots.find(path))
            content = await asyncio.to_thread(file.read_bytes)
        return Response(content, media_type="application/octet-stream")

    async def put_weights(self, request: Request) -> Response:
        entry = self._model(request)
        operation = self._service.replace_weights(entry, await self._bodies.content(request))
        return JSONResponse({"loaded": await operation.outcome()})

    async def get_operation(self, request: Request) -> Response:
        operation = self._service.operations.get(request.path_params["operation"])
        wait = request.query_params.get("wait", "0")
        try:
            seconds = min(float(wait), _LONGEST_WAIT_S)
        except ValueError:
            raise ServiceRequestError(f"wait is {wait!r}, not a number of seconds") from None
        await operation.wait(seconds)
        return JSONResponse(weaver_json.operation_json(operation))

    def _model(self, request: Request) -> ModelEntry:
        return self._service.model(request.path_params["model"])
