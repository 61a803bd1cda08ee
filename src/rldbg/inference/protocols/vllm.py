"""vLLM's own control routes and its token-in, token-out generation, which prime-rl uses."""

from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from rldbg.algorithms import LogprobMode
from rldbg.inference.backend import Backend
from rldbg.inference.generation import GenerationJob
from rldbg.inference.protocols.control import Control, constant, refused
from rldbg.inference.protocols.fields import MAX_SAMPLES
from rldbg.inference.protocols.generation_jobs import new_id, samples, seed_of, settings_of, top_count
from rldbg.inference.protocols.http import Json, RouteTable, body_of, fields_of, outcomes, submit_all
from rldbg.inference.request_error import RequestError
from rldbg.version import __version__

_PAUSE_MODES = {"abort": "abort", "wait": "retract", "keep": "in_place"}
_DEFAULT_TOKENS = 16
_NO_WORKERS = (
    "this server has no workers to call: POST the weights as a safetensors body to /update_weights, or use "
    "/update_weights_from_disk"
)


class Vllm:
    def __init__(self, backend: Backend, mode: LogprobMode) -> None:
        self._backend = backend
        self._control = Control(backend)
        self._mode = mode
        self._updating = False

    def table(self) -> RouteTable:
        return (
            ("GET", "/ping", constant({"status": "ok"})),
            ("GET", "/liveness", constant({"status": "ok"})),
            ("GET", "/version", constant({"version": f"rldbg {__version__}"})),
            ("GET", "/metrics", self.metrics),
            ("POST", "/pause", self.pause),
            ("POST", "/resume", self.resume),
            ("GET", "/is_paused", self.is_paused),
            ("POST", "/abort_requests", self.abort),
            ("POST", "/sleep", self.sleep),
            ("POST", "/wake_up", self.resume),
            ("POST", "/init_weight_transfer_engine", self.init_transfer),
            ("POST", "/start_weight_update", self.start_update),
            ("POST", "/update_weights", self.update_weights),
            ("POST", "/finish_weight_update", self.finish_update),
            ("POST", "/update_weight_version", self._control.name_version),
            ("GET", "/weight_info", self.weight_info),
            ("GET", "/get_world_size", constant({"world_size": 1})),
            ("POST", "/reset_prefix_cache", constant({"success": True})),
            ("POST", "/collective_rpc", refused(_NO_WORKERS)),
            ("POST", "/inference/v1/generate", self.generate),
        )

    async def metrics(self, _request: Request) -> Response:
        """Prometheus' text form, under vLLM's names."""
        status = self._backend.status()
        label = f'{{model_name="{self._backend.card.name}"}}'
        lines = [
            f"vllm:num_requests_running{label} {status.running}",
            f"vllm:num_requests_waiting{label} {status.waiting}",
            f"vllm:generation_tokens_total{label} {status.generated_tokens}",
            f"rldbg:forward_calls_total{label} {status.forward_calls}",
        ]
        return PlainTextResponse("\n".join(lines) + "\n")

    async def pause(self, request: Request) -> Response:
        await fields_of(request)
        await self._pause(request)
        return Json({"status": "paused"})

    async def sleep(self, request: Request) -> Response:
        await fields_of(request)
        await self._pause(request)
        return Json({"status": "sleeping"})

    async def _pause(self, request: Request) -> None:
        mode = request.query_params.get("mode", "abort")
        if mode not in _PAUSE_MODES:
            raise RequestError(f"mode is {mode!r}; it must be one of {', '.join(_PAUSE_MODES)}")
        await self._control.pause(_PAUSE_MODES[mode])

    async def resume(self, request: Request) -> Response:
        await fields_of(request)
        await self._backend.resume()
        return Json({"status": "resumed"})

    async def is_paused(self, _request: Request) -> Response:
        return Json({"is_paused": self._backend.status().paused})

    async def abort(self, request: Request) -> Response:
        ids = (await fields_of(request)).texts("request_ids")
        for name in ids or (None,):
            self._backend.abort(name, with_samples=True)
        return Json({"status": "ok"})

    async def init_transfer(self, request: Request) -> Response:
        """Weights come over HTTP: such an update is accepted, and a process group is refused."""
        if (await fields_of(request)).object("init_info").get("backend") != "http":
            self._control.refuse_group()
        return Json({"message": "weights are taken over HTTP"})

    async def start_update(self, request: Request) -> Response:
        """Until the update is finished, all weights that come belong to one version."""
        await fields_of(request)
        self._updating = True
        return Json({"message": "weight update started"})

    async def finish_update(self, request: Request) -> Response:
        label = (await fields_of(request)).optional_text("weight_version")
        self._updating = False
        number = self._backend.status().version.number
        version = await self._backend.name_version(label if label is not None else str(number + 1))
        return Json({"message": "weight update finished", "weight_version": version.label})

    async def update_weights(self, request: Request) -> Response:
        """The body is a safetensors file with some or all weights; prime-rl names a folder instead."""
        given = request.query_params.get("weight_version")
        label = self._backend.status().version.label if self._updating and given is None else given
        if "json" not in request.headers.get("content-type", "json"):
            version = await self._control.from_body(request, label)
        else:
            fields = await fields_of(request)
            if fields.has("update_info"):
                self._control.refuse_group()
            folder = fields.text("weight_dir") or fields.text("model_path")
            version = await self._control.from_disk(folder, fields.optional_text("weight_version") or label)
        return Json({"status": "ok", "weight_version": version.label})

    async def weight_info(self, _request: Request) -> Response:
        return Json({"weight_version": self._backend.status().version.label})

    async def generate(self, request: Request) -> Response:
        fields = await fields_of(request)
        sampling = fields.inner("sampling_params")
        settings = settings_of(
            sampling,
            max_new_tokens=sampling.integer("max_tokens", _DEFAULT_TOKENS),
            stop_texts=sampling.texts("stop"),
            mode=self._mode,
        )
        name = fields.optional_text("request_id") or new_id("generate-tokens-")
        top = top_count(sampling, "logprobs")
        base = GenerationJob(name, fields.tokens("token_ids"), settings, seed=0, top_logprobs=top)
        count = sampling.integer("n", 1, least=1, most=MAX_SAMPLES)
        jobs = samples(base, count, seed_of(sampling, "seed"))
        done = await outcomes(request, self._backend, submit_all(self._backend, jobs))
        choices = [
            {
                "index": index,
                "token_ids": item.tokens,
                "token_versions": item.versions,
                "finish_reason": item.finish.kind,
                "logprobs": {
                    "content": [
                        _entry(token, logprob) | {"top_logprobs": [_entry(*other) for other in place]}
                        for token, logprob, place in zip(
                            item.tokens, item.logprobs, item.top or [[]] * len(item.tokens), strict=True
                        )
                    ]
                }
                if sampling.has("logprobs")
                else None,
            }
            for index, item in enumerate(done)
        ]
        return Json({"request_id": name, "choices": choices, "weight_version": done[0].weight_version})


def _entry(token: int | str, logprob: float) -> dict[str, Any]:
    return {"token": token if isinstance(token, str) else f"token_id:{token}", "logprob": logprob}


def areal_error(error: RequestError) -> Response:
    return Json({"success": False, "message": error.message}, error.status)


class Areal:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._control = Control(backend)

    def table(self) -> RouteTable:
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
        """Running requests end with the tokens they have; the client requests the rest afterwards."""
        await fields_of(request)
        await self._backend.pause("abort")
        return Json({"success": True, "message": "generation is paused"})

    async def resume(self, request: Request) -> Response:
        await fields_of(request)
        await self._backend.resume()
        return Json({"success": True, "message": "generation resumed"})

    async def update_weights(self, request: Request) -> Response:
        fields = await fields_of(request)
        label = fields.optional_text("weight_version") or fields.optional_text("version")
        version = await self._control.from_disk(fields.text("model_path"), label)
        return Json({"success": True, "message": f"weight version is {version.label}"})

    async def no_adapters(self, request: Request) -> Response:
        await body_of(request)
        raise RequestError("adapters are not supported here: update the whole weights from disk")
