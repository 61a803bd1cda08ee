"""The JSON protocol of docs/training_service.md, second half: sampling sessions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rldbg.training_service import weaver_json
from rldbg.training_service.bodies import refuse
from rldbg.training_service.datums import check_tokens, tokens_from_json
from rldbg.training_service.errors import ServiceRequestError
from rldbg.training_service.routing import Handlers, ServiceTable
from rldbg.training_service.samplers import SampleRequest
from rldbg.training_service.sampling import ClientSamplingSettings
from rldbg.training_service.sampling_sessions import SamplingSession
from rldbg.training_service.service import TrainingService
from rldbg.training_service.weaver_training import accepted

MOST_SAMPLES = 1024
_UNSUPPORTED = (
    "return_sampling_mask",
    "return_old_logprob",
    "return_moe_topk_indices",
    "return_rollout_token_expert",
    "score_centering",
)


def prompt_of(service: TrainingService, session: SamplingSession, body: Mapping[str, Any]) -> np.ndarray:
    """The prompt's tokens, checked against the model it is for."""
    prompt = tokens_from_json("prompt", body.get("prompt"))
    base = service.bases.describe(session.base_model)
    if not 0 < len(prompt) <= base.max_length:
        raise ServiceRequestError(f"the prompt has {len(prompt)} tokens; from 1 to {base.max_length}")
    check_tokens("prompt", prompt, base.vocabulary_size)
    return prompt


def count_of(body: Mapping[str, Any], key: str, default: int, least: int, most: int) -> int:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ServiceRequestError(f"{key} is {value!r}; from {least} to {most}")
    return value


class WeaverSampling(Handlers):
    def table(self) -> ServiceTable:
        return (
            ("POST", "/sessions/{session}/sampling-sessions", self.create),
            ("GET", "/sampling-sessions/{session}", self.get),
            ("DELETE", "/sampling-sessions/{session}", self.delete),
            ("POST", "/sampling-sessions/{session}/samples", self.sample),
            ("POST", "/sampling-sessions/{session}/logprobs", self.logprobs),
            ("POST", "/sampling-sessions/{session}/pause-generation", self.pause),
            ("POST", "/sampling-sessions/{session}/continue-generation", self.resume),
        )

    async def create(self, request: Request) -> Response:
        self._service.touch_session(request.path_params["session"])
        body = await self._bodies.json(request)
        session = self._service.sampling.create(model_path=body.get("model_path"), base_model=body.get("base_model"))
        return JSONResponse(self._json(session), 201)

    async def get(self, request: Request) -> Response:
        return JSONResponse(self._json(self._session(request)))

    async def delete(self, request: Request) -> Response:
        self._service.sampling.close(request.path_params["session"])
        return JSONResponse({"status": "deleted"})

    async def sample(self, request: Request) -> Response:
        session = self._session(request)
        body = await self._supported(request)
        settings = ClientSamplingSettings.parse(body.get("sampling_params") or {})
        operation = self._service.sampling.sample(
            session,
            SampleRequest(
                prompt=prompt_of(self._service, session, body),
                count=count_of(body, "num_samples", 1, 1, MOST_SAMPLES),
                settings=settings,
                seed=self._service.sampling.choose_seed(session, settings.seed),
                prompt_logprobs=bool(body.get("prompt_logprobs")),
                prompt_top=count_of(body, "topk_prompt_logprobs", 0, 0, 1 << 10),
            ),
        )
        decode = self._service.bases.describe(session.base_model).tokenizer.decode
        return await accepted(operation, lambda result: weaver_json.samples_json(result, decode))

    async def logprobs(self, request: Request) -> Response:
        session = self._session(request)
        body = await self._supported(request)
        prompt = prompt_of(self._service, session, body)
        only_prompt = SampleRequest(prompt, 0, ClientSamplingSettings(), 0, prompt_logprobs=True)
        return await accepted(
            self._service.sampling.sample(session, only_prompt),
            lambda result: {"result": {"prompt_logprobs": weaver_json.nullable(result.prompt_logprobs)}},
        )

    async def pause(self, request: Request) -> Response:
        """Requests run one after the other to their end, so there is never one in flight to abort."""
        self._session(request)
        mode = (await self._bodies.json(request)).get("mode", "abort")
        return JSONResponse({"ok": True, "status": "paused", "mode": mode})

    async def resume(self, request: Request) -> Response:
        self._session(request)
        return JSONResponse({"ok": True, "status": "running"})

    def _session(self, request: Request) -> SamplingSession:
        return self._service.sampling.get(request.path_params["session"])

    async def _supported(self, request: Request) -> Mapping[str, Any]:
        body = await self._bodies.json(request)
        refuse(body, _UNSUPPORTED)
        return body

    def _json(self, session: SamplingSession) -> dict[str, Any]:
        return {
            "id": session.id,
            "base_model": session.base_model,
            "model_path": None if session.snapshot is None else session.snapshot.path("weaver"),
            "tokenizer_path": self._service.bases.describe(session.base_model).tokenizer_path,
        }
