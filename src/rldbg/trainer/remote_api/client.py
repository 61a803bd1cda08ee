"""A client of the training service's JSON protocol (docs/training_service.md): sessions, passes, steps, sampling.

Requests that train are numbered, so that the service executes them in the order they were made here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rldbg.core import NoAnswerError, RldbgError, UnreachableError, UsageError, http_request
from rldbg.inference import Generation, GenerationRequest
from rldbg.trainer.settings import InferenceSettings, RemoteSettings

_POLL_S = 20


class ServiceError(RldbgError):
    """The service understood a request and refused it, or failed at it."""

    kind = "service"


class ServiceConnection:
    """The connection to the service; every error names the service. Nothing is held open between requests."""

    def __init__(self, settings: RemoteSettings) -> None:
        parts = urlsplit(settings.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"remote.url is {settings.url!r}", "write it as http://HOST:PORT")
        self.url = settings.url
        self._settings = settings

    def call(self, method: str, path: str, body: Any = None, *, content: bytes | None = None) -> Any:
        """Sends one request; returns the JSON of its response."""
        data = content if content is not None else (None if body is None else json.dumps(body).encode())
        kind = "application/octet-stream" if content is not None else "application/json"
        try:
            answer = http_request(
                method,
                f"{self.url.rstrip('/')}/api/v1{path}",
                timeout_s=self._settings.timeout_s,
                content=data,
                headers={"Content-Type": kind},
                token=self._settings.api_key,
            )
        except NoAnswerError as error:
            raise UnreachableError(
                f"the training service at {self.url} does not answer: {error}",
                "start one with `rldbg serve up --backend train`, and set remote.url to its address",
            ) from error
        return self._answer(method, path, answer.status_code, answer.content)

    def operation(self, method: str, path: str, body: Any) -> Any:
        """Sends a long-running request, waits for it, and returns its result."""
        operation = self.call(method, path, body)
        deadline = time.monotonic() + self._settings.timeout_s
        while operation["status"] == "pending":
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"the training service at {self.url} has not finished {path} in {self._settings.timeout_s:g} s",
                    "raise remote.timeout_s",
                )
            operation = self.call("GET", f"/operations/{operation['id']}?wait={_POLL_S}")
        if operation["status"] == "error":
            raise ServiceError(f"the training service failed at {path}: {operation['error_message']}")
        return operation["response"]

    def _answer(self, method: str, path: str, status: int, text: bytes) -> Any:
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if status < 400 and answer is not None:
            return answer
        why = answer.get("message", answer) if isinstance(answer, dict) else text[:200].decode("utf-8", "replace")
        raise ServiceError(
            f"the training service at {self.url} refused {method} {path} ({status}): {why}",
            "check that remote.url is a training service (`rldbg serve ls`)",
        )


class TrainingClient:
    """One model on the service. Every request that trains gets the next number."""

    def __init__(self, connection: ServiceConnection, *, base_model: str, seed: int) -> None:
        self._connection = connection
        self._session = connection.call("POST", "/sessions", {})["id"]
        model = {"base_model": base_model, "model_seq_id": 1, "seed": seed}
        self._model = connection.call("POST", f"/sessions/{self._session}/models", model)["id"]
        self._number = 0

    def put_weights(self, weights: Mapping[str, Any]) -> None:
        from safetensors.torch import save

        self._connection.call("PUT", f"/models/{self._model}/weights", content=save(dict(weights)))

    def forward(self, datums: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> list[list[float]]:
        """The log prob of every target, datum by datum."""
        inputs = {"loss_fn": "forward_logprob", "loss_fn_config": dict(config), "data": list(datums)}
        result = self._train("forward-passes", {"forward_input": inputs})
        return [output["logprobs"]["data"] for output in result["loss_fn_outputs"]]

    def forward_backward(
        self, loss: str, config: Mapping[str, Any], datums: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        inputs = {"loss_fn": loss, "loss_fn_config": dict(config), "data": list(datums)}
        metrics: dict[str, float] = self._train("forward-backward-passes", {"forward_backward_input": inputs})[
            "metrics"
        ]
        return metrics

    def optimizer_step(self, adam: Mapping[str, float]) -> dict[str, float]:
        metrics: dict[str, float] = self._train("optimizer-steps", {"adam_params": dict(adam)})["metrics"]
        return metrics

    def export_sampler(self) -> str:
        """Freezes the weights for sampling; the id of a sampling session with them."""
        body = {"seq_id": self._next()}
        exported = self._connection.operation("POST", f"/models/{self._model}/export-sampler", body)
        session = {"model_path": exported["model_path"]}
        answer = self._connection.call("POST", f"/sessions/{self._session}/sampling-sessions", session)
        return str(answer["id"])

    def save(self, name: str) -> str:
        """Keeps weights and optimizer under this name on the service; the path they are loaded by."""
        body = {"name": name, "type": "weight_and_optimizer"}
        return str(self._connection.operation("POST", f"/models/{self._model}/checkpoints", body)["path"])

    def load(self, path: str) -> None:
        self._connection.operation("POST", f"/models/{self._model}/load", {"path": path, "include_optimizer": True})

    def terminate(self) -> None:
        self._connection.call("POST", f"/models/{self._model}/terminate", {})

    def _train(self, route: str, payload: Mapping[str, Any]) -> Any:
        body = {"payload": {"model_id": self._model, "seq_id": self._next(), **payload}}
        return self._connection.operation("POST", f"/models/{self._model}/{route}", body)

    def _next(self) -> int:
        self._number += 1
        return self._number


@dataclass(frozen=True, slots=True)
class RemoteSampler:
    """Sampling from frozen weights on the service. It pickles, so that rollout workers can carry it."""

    remote: RemoteSettings
    inference: InferenceSettings
    session: str
    policy_version: int
    eos_id: int

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Continues each prompt; neighbours with the same prompt travel as one request."""
        connection = ServiceConnection(self.remote)
        return [generation for run in _runs(requests) for generation in self._sample(connection, run)]

    def _sample(self, connection: ServiceConnection, run: Sequence[GenerationRequest]) -> list[Generation]:
        body = {
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(run[0].prompt)}]},
            "num_samples": len(run),
            "sampling_params": {
                "max_tokens": self.inference.max_new_tokens,
                "temperature": self.inference.temperature,
                "seed": run[0].key,
                "stop_token_ids": [self.eos_id],
            },
        }
        answer = connection.operation("POST", f"/sampling-sessions/{self.session}/samples", body)
        return [
            Generation(item["tokens"], item["logprobs"], item["stop_reason"] == "stop", self.policy_version)
            for item in answer["sequences"]
        ]


def _runs(requests: Sequence[GenerationRequest]) -> list[list[GenerationRequest]]:
    """Neighbours with the same prompt, together."""
    runs: list[list[GenerationRequest]] = []
    for request in requests:
        if runs and runs[-1][0].prompt == request.prompt:
            runs[-1].append(request)
        else:
            runs.append([request])
    return runs
