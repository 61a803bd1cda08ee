"""A rollout worker's sampler that is a server somewhere else, asked by SGLang's native protocol. It pickles."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rldbg.core import IncompleteDataError, NoAnswerError, UnreachableError, http_request
from rldbg.inference.batch_sampler import Generation, GenerationRequest
from rldbg.weights import Fingerprint

_CHECK_S = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpSampling:
    """Asks one server. The same prompts, seeds and positions are sent as the embedded sampler uses itself."""

    address: str
    max_new_tokens: int
    temperature: float
    eos_id: int
    timeout_s: float = 600.0

    def check(self) -> None:
        """Raises an error if no server answers, before anything else is started."""
        self._ask("GET", "/health", timeout_s=_CHECK_S)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """All requests in one, so that they arrive in their order."""
        if not requests:
            return []
        shared = {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "stop_token_ids": [self.eos_id],
            "ignore_eos": True,
        }
        sampling = [
            shared | {"sampling_seed": item.key, "custom_params": {"position": item.position}} for item in requests
        ]
        prompts = [list(item.prompt) for item in requests]
        body = {"input_ids": prompts, "sampling_params": sampling, "return_logprob": True}
        answers = json.loads(self._post("/generate", json.dumps(body).encode(), "application/json"))
        return [_generation(answer) for answer in answers]

    def load_weights(self, weights: Mapping[str, Any], policy_version: int) -> None:
        """Sends the weights as one safetensors file."""
        from safetensors.torch import save

        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
        path = f"/update_weights_from_tensor?weight_version={policy_version}"
        self._post(path, content, "application/octet-stream")

    def held_weights(self) -> list[Fingerprint]:
        """What the server holds; nothing where it has no such route, as other engines do not."""
        try:
            answer = self._ask("GET", "/weight_fingerprints", timeout_s=self.timeout_s)
        except IncompleteDataError as refused:
            _log.warning("weights are not recorded: %s", refused)
            return []
        return [Fingerprint.from_dict(item) for item in json.loads(answer)["tensors"]]

    def _post(self, path: str, content: bytes, kind: str) -> bytes:
        return self._ask("POST", path, content=content, headers={"Content-Type": kind}, timeout_s=self.timeout_s)

    def _ask(self, method: str, path: str, **options: Any) -> bytes:
        try:
            answer = http_request(method, f"http://{self.address}{path}", **options)
        except NoAnswerError as error:
            raise UnreachableError(
                f"the inference server at {self.address} does not answer: {error}", "see `rldbg serve ls`"
            ) from error
        if answer.is_success:
            return answer.content
        raise IncompleteDataError(
            f"the inference server at {self.address} refused {path.partition('?')[0]}: {answer.text[: 1 << 16]}",
            "see `rldbg serve ls` and `rldbg serve logs NAME`",
        )


def _generation(answer: Mapping[str, Any]) -> Generation:
    meta = answer["meta_info"]
    drawn = meta["output_token_logprobs"]
    versions = meta.get("token_versions") or [int(meta["weight_version"])]
    return Generation(
        tokens=[int(item[1]) for item in drawn],
        logprobs=[float(item[0]) for item in drawn],
        finished=meta["finish_reason"]["type"] == "stop",
        policy_version=int(versions[0]),
    )
