"""The Tinker protocol, first half: sessions, models, training, snapshots. Every piece of work is a promise.

Passes come as protobuf, everything else as JSON; results of passes go back as protobuf.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rldbg.training_service import tinker_messages
from rldbg.training_service.errors import ServiceRequestError, read_settings
from rldbg.training_service.lora import LoraSettings
from rldbg.training_service.losses import LossSettings
from rldbg.training_service.models import AdamSettings
from rldbg.training_service.operations import Operation
from rldbg.training_service.passes import PassResult
from rldbg.training_service.request_order import digest_of, sequence_number
from rldbg.training_service.routing import Handlers, ServiceTable
from rldbg.training_service.sampling_sessions import SamplingSession
from rldbg.training_service.service import ModelEntry
from rldbg.training_service.snapshots import ModelSnapshot
from rldbg.training_service.weaver_json import lifetime_of, name_of

_DEFAULT_ADAM = AdamSettings(1e-4, 0.9, 0.95, 1e-12, 0.0, 0.0)
# How a metric of several requests for one batch is put together is part of its name.
_METRIC_NAMES: Mapping[str, str] = {
    "loss:sum": "loss:sum",
    "tokens": "tokens:sum",
    "entropy": "entropy:mean",
    "ratio/mean": "ratio/mean:mean",
    "ratio/min": "ratio/min:min",
    "ratio/max": "ratio/max:max",
    "kl/k1": "kl/k1:mean",
    "kl/k3": "kl/k3:mean",
}


class TinkerTraining(Handlers):
    def table(self) -> ServiceTable:
        posts = (
            ("client/config", self.client_config),
            ("client/dynamic_config", self.dynamic_config),
            ("create_session", self.create_session),
            ("session_heartbeat", self.heartbeat),
            ("sessions/{session}/finish", self.finish_session),
            ("telemetry", self.telemetry),
            ("create_model", self.create_model),
            ("unload_model", self.unload_model),
            ("get_info", self.get_info),
            ("forward_backward", self.forward_backward),
            ("optim_step", self.optim_step),
            ("save_weights", self.save_weights),
            ("save_weights_for_sampler", self.save_weights_for_sampler),
            ("load_weights", self.load_weights),
            ("weights_info", self.weights_info),
        )
        return (
            *(("POST", f"/{path}", handler) for path, handler in posts),
            ("GET", "/get_server_capabilities", self.capabilities),
        )

    # Sessions and models

    async def client_config(self, _request: Request) -> Response:
        return JSONResponse({"proto_compress_fwdbwd": True, "create_model_via_load_weights": True})

    async def dynamic_config(self, _request: Request) -> Response:
        return JSONResponse({})

    async def capabilities(self, _request: Request) -> Response:
        bases = self._service.bases
        models = [
            {"model_name": name, "max_context_length": bases.describe(name).max_length, "trainable": True}
            for name in bases.names
        ]
        return JSONResponse({"supported_models": models})

    async def create_session(self, _request: Request) -> Response:
        return JSONResponse({"type": "create_session", "session_id": self._service.create_session()})

    async def heartbeat(self, request: Request) -> Response:
        self._service.touch_session((await self._bodies.json(request)).get("session_id"))
        return JSONResponse({"type": "session_heartbeat"})

    async def telemetry(self, request: Request) -> Response:
        await self._bodies.content(request)
        return JSONResponse({"status": "accepted"})

    async def finish_session(self, _request: Request) -> Response:
        return JSONResponse({})

    async def create_model(self, request: Request) -> Response:
        body = await self._bodies.json(request)
        optimizer = body.get("optimizer_config") or {}
        if isinstance(optimizer, Mapping) and optimizer.get("type", "adamw") != "adamw":
            raise ServiceRequestError(f"optimizer {optimizer.get('type')!r} is not supported here; adamw is")
        base_model, given = body.get("base_model"), body.get("lora_config")
        lora = None if given is None else read_settings(LoraSettings, given, "lora_config")
        if isinstance(base_model, str):
            await asyncio.to_thread(self._service.bases.describe, base_model)
        entry = self._service.create_model(
            body.get("session_id"),
            body.get("model_seq_id"),
            base_model,
            seed=(lora.seed if lora else None) or 0,
            lora=lora,
            metadata=body.get("user_metadata"),
        )
        return _promise(entry.creation, lambda _: {"type": "create_model", "model_id": entry.model_id}, entry)

    async def unload_model(self, request: Request) -> Response:
        model_id = (await self._bodies.json(request)).get("model_id")
        operation = self._service.remove_model(model_id)
        return _promise(operation, lambda _: {"type": "unload_model", "model_id": model_id})

    async def get_info(self, request: Request) -> Response:
        entry = self._service.model((await self._bodies.json(request)).get("model_id"))
        data = {
            "arch": type(entry.model.module).__name__,
            "model_name": entry.base_model,
            "tokenizer_id": entry.base.tokenizer_path,
        }
        return JSONResponse(
            {"type": "get_info", "model_id": entry.model_id, "model_data": data, **lora_facts(entry.lora)}
        )

    # Training

    async def forward_backward(self, request: Request) -> Response:
        content = await self._bodies.content(request)
        message = await asyncio.to_thread(tinker_messages.read_pass, content)
        entry = self._service.model(message.model_id)
        digest = digest_of("forward_backward", content)
        with self._service.using_number(entry, message.seq_id, digest):
            loss = LossSettings.parse(message.loss_fn, message.loss_fn_config)
            datums = await asyncio.to_thread(
                message.datums, vocabulary_size=entry.base.vocabulary_size, max_length=entry.base.max_length
            )
            operation = self._service.run_pass(
                entry, message.seq_id, digest, loss, datums, backward=not message.forward_only
            )
        return _promise(operation, _pass_message, entry)

    async def optim_step(self, request: Request) -> Response:
        body = await self._bodies.json(request)
        entry, number, digest = self._numbered(body)
        with self._service.using_number(entry, number, digest):
            if "optimizer_params" in body:
                raise ServiceRequestError("only adam_params are supported here")
            adam = AdamSettings.parse(body.get("adam_params", {}), _DEFAULT_ADAM)
            operation = self._service.optimizer_step(entry, number, digest, adam)
        return _promise(operation, _step_message, entry)

    # Snapshots

    async def save_weights(self, request: Request) -> Response:
        body = await self._bodies.json(request)
        entry, number, digest = self._numbered(body)
        with self._service.using_number(entry, number, digest):
            operation = self._service.save(
                entry,
                number,
                digest,
                purpose="weights",
                name=name_of(body, "path") or f"step-{number}",
                with_optimizer=True,
                ttl_s=lifetime_of(body),
                overwrite=bool(body.get("overwrite", False)),
                kind="weight_and_optimizer",
            )
        return _promise(operation, lambda saved: {"type": "save_weights", "path": saved.path("tinker")}, entry)

    async def save_weights_for_sampler(self, request: Request) -> Response:
        body = await self._bodies.json(request)
        entry, number, digest = self._numbered(body)
        with self._service.using_number(entry, number, digest):
            name, ttl_s = name_of(body, "path"), lifetime_of(body)
            operation = self._service.save(
                entry, number, digest, purpose="sampler", name=name, ttl_s=ttl_s, overwrite=True, kind="sampling"
            )
        sessions: list[SamplingSession] = []

        def present(saved: ModelSnapshot) -> dict[str, Any]:
            answer: dict[str, Any] = {"type": "save_weights_for_sampler", "path": saved.path("tinker")}
            if name is None:
                # Asked again, the same promise must give the same session.
                if not sessions:
                    sessions.append(self._service.sampling.open(saved.base_model, saved))
                answer |= {"path": None, "sampling_session_id": sessions[0].id}
            return answer

        return _promise(operation, present, entry)

    async def load_weights(self, request: Request) -> Response:
        body = await self._bodies.json(request)
        with_optimizer = bool(body.get("optimizer", False))
        if body.get("session_id") is not None:
            snapshot = self._service.snapshots.find(str(body.get("path")))
            entry = self._service.create_model(
                body["session_id"],
                body.get("model_seq_id"),
                body.get("base_model") or snapshot.base_model,
                snapshot=snapshot,
                with_optimizer=with_optimizer,
                metadata=body.get("user_metadata"),
            )
            return _promise(entry.creation, lambda _: _loaded(snapshot, entry), entry)
        entry, number, digest = self._numbered(body)
        with self._service.using_number(entry, number, digest):
            operation = self._service.load(entry, number, digest, body.get("path"), with_optimizer=with_optimizer)
        return _promise(operation, lambda snapshot: _loaded(snapshot, entry), entry)

    async def weights_info(self, request: Request) -> Response:
        path = (await self._bodies.json(request)).get("tinker_path")
        snapshot = self._service.snapshots.find(str(path))
        lora = None if snapshot.lora is None else LoraSettings(**snapshot.lora)
        return JSONResponse({"base_model": snapshot.base_model, **lora_facts(lora)})

    def _numbered(self, body: Mapping[str, Any]) -> tuple[ModelEntry, int, bytes]:
        entry = self._service.model(body.get("model_id"))
        return entry, sequence_number(body), digest_of(body.get("type"), body)


def lora_facts(lora: LoraSettings | None) -> dict[str, Any]:
    return {"is_lora": lora is not None, "lora_rank": lora.rank if lora else None}


def _promise(operation: Operation, present: Callable[[Any], Any], entry: ModelEntry | None = None) -> Response:
    operation.present = present
    body = {"request_id": operation.id}
    if entry is not None:
        body["model_id"] = entry.model_id
    return JSONResponse(body)


def _loaded(snapshot: ModelSnapshot, entry: ModelEntry) -> dict[str, Any]:
    return {"type": "load_weights", "path": snapshot.path("tinker"), "model_id": entry.model_id}


def _step_message(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Clients add these metrics to their own, which have a `step` that counts otherwise."""
    named = {"optimizer_step" if name == "step" else name: value for name, value in metrics.items()}
    return {"type": "optim_step", "metrics": named}


def _pass_message(result: PassResult) -> bytes:
    metrics = {_METRIC_NAMES[name]: value for name, value in result.metrics.items() if name in _METRIC_NAMES}
    return tinker_messages.write_pass_result(metrics, result.logprobs)
