"""The Tinker protocol, second half: sampling, and the promises by which every result is fetched."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rldbg.training_service import tinker_messages
from rldbg.training_service.bodies import refuse
from rldbg.training_service.errors import ServiceRequestError
from rldbg.training_service.request_order import digest_of, sequence_number
from rldbg.training_service.routing import Handlers, ServiceTable
from rldbg.training_service.samplers import SampleRequest
from rldbg.training_service.sampling import ClientSamplingSettings
from rldbg.training_service.sampling_sessions import SamplingSession
from rldbg.training_service.weaver_sampling import MOST_SAMPLES, count_of, prompt_of

# The client gives one retrieve request 45 s.
_LONGEST_WAIT_S = 30.0
_UNSUPPORTED = ("target_prompt_logprobs", "prompt_alt_tokens_k", "record_stability_info")


class TinkerSampling(Handlers):
    def table(self) -> ServiceTable:
        return (
            ("POST", "/create_sampling_session", self.create_sampling_session),
            ("POST", "/join_sampling_session", self.join_sampling_session),
            ("GET", "/samplers/{session}", self.get_sampler),
            ("POST", "/asample", self.sample),
            ("POST", "/retrieve_future", self.retrieve_future),
            ("POST", "/cancel_future", self.cancel_future),
        )

    async def create_sampling_session(self, request: Request) -> Response:
        body = await self._bodies.json(request)
        self._service.touch_session(body.get("session_id"))
        session = self._service.sampling.create(model_path=body.get("model_path"), base_model=body.get("base_model"))
        return JSONResponse({"type": "create_sampling_session", "sampling_session_id": session.id})

    async def join_sampling_session(self, request: Request) -> Response:
        session = self._service.sampling.get((await self._bodies.json(request)).get("sampling_session_id"))
        session.clones += 1
        return JSONResponse({"type": "join_sampling_session", "client_counter": session.clones})

    async def get_sampler(self, request: Request) -> Response:
        session = self._service.sampling.get(request.path_params["session"])
        path = None if session.snapshot is None else session.snapshot.path("tinker")
        # The client loads its tokenizer by this name, which has to be a folder it can read.
        base = self._service.bases.describe(session.base_model)
        return JSONResponse({"sampler_id": session.id, "base_model": base.tokenizer_path, "model_path": path})

    async def sample(self, request: Request) -> Response:
        body = await self._bodies.json(request)
        refuse(body, _UNSUPPORTED)
        count = count_of(body, "num_samples", 1, 1, MOST_SAMPLES)
        if body.get("sampling_session_id") is not None:
            session = self._service.sampling.get(body["sampling_session_id"])
            digest = digest_of("sample", body)
            operation = self._service.sampling.sample_once(
                session, sequence_number(body), digest, lambda: self._sample_request(session, body, count)
            )
        else:
            session = self._service.sampling.create(
                model_path=body.get("model_path"), base_model=body.get("base_model")
            )
            operation = self._service.sampling.sample(session, self._sample_request(session, body, count))
        operation.present = tinker_messages.write_samples
        identifiers = [f"{operation.id}-{number}" for number in range(count)]
        return JSONResponse({"request_id": operation.id, "sample_sequence_ids": identifiers})

    def _sample_request(self, session: SamplingSession, body: Mapping[str, Any], count: int) -> SampleRequest:
        settings = ClientSamplingSettings.parse(body.get("sampling_params") or {})
        prompt = prompt_of(self._service, session, body)
        return SampleRequest(
            prompt=prompt,
            count=count,
            settings=settings,
            seed=self._service.sampling.choose_seed(session, settings.seed),
            prompt_logprobs=bool(body.get("prompt_logprobs")),
            prompt_top=count_of(body, "topk_prompt_logprobs", 0, 0, 1 << 10),
            sample_top=count_of(body, "topk_sample_logprobs", 0, 0, 1 << 10),
            score_last=count_of(body, "prompt_logprobs_last_n", len(prompt), 1, len(prompt)),
        )

    async def retrieve_future(self, request: Request) -> Response:
        operation = self._service.operations.get(str((await self._bodies.json(request)).get("request_id")))
        if not await operation.wait(_LONGEST_WAIT_S):
            again = {"type": "try_again", "request_id": operation.id, "queue_state": "active"}
            return JSONResponse(again, 408)
        if operation.error is not None:
            category = "server" if operation.error.status >= 500 else "user"
            return JSONResponse({"error": operation.error.message, "category": category})
        answer = operation.answer
        if isinstance(answer, bytes):
            return Response(answer, media_type=tinker_messages.CONTENT_TYPE)
        return JSONResponse(answer)

    async def cancel_future(self, request: Request) -> Response:
        """Gives a promise up; work that has not begun is dropped."""
        operation = self._service.operations.get(str((await self._bodies.json(request)).get("request_id")))
        operation.fail(ServiceRequestError("cancelled by the client"))
        return Response(status_code=204)
