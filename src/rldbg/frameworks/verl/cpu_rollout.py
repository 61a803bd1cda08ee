"""verl's rollout engine on a machine without an accelerator: requests and weights go to `rldbg serve`.

RLDBG_LAPTOP_SERVER is the address of the server. It is asked by the standard library: what rldbg depends on need not be
installed where verl is.
"""

import asyncio
import json
import urllib.error
import urllib.request
from functools import partial
from typing import Any

import ray
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from rldbg.core import Environment
from rldbg.frameworks.weight_recording import record_served


class LaptopServer:
    """The Ray actor between verl's agent loops and the server."""

    def __init__(self, config: Any, address: str) -> None:
        self._config = config
        self._address = address
        self._global_steps = 0

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        given = dict(sampling_params)
        most = self._config.prompt_length + self._config.response_length - len(prompt_ids)
        limit = given.get("max_tokens") or given.get("max_new_tokens") or min(self._config.response_length, most)
        names = ("temperature", "top_p", "top_k", "stop", "stop_token_ids", "ignore_eos")
        parameters = {name: given[name] for name in names if given.get(name) is not None}
        body = {
            "input_ids": list(prompt_ids),
            "sampling_params": parameters | {"max_new_tokens": max(1, limit)},
            "return_logprob": True,
        }
        answer = await asyncio.to_thread(post, self._address, "/generate", json.dumps(body).encode())
        about = answer["meta_info"]
        return TokenOutput(
            token_ids=answer["output_ids"],
            log_probs=[entry[0] for entry in about["output_token_logprobs"]],
            stop_reason="completed" if about["finish_reason"]["type"] in ("stop", "length") else "aborted",
            extra_fields={"global_steps": self._global_steps},
        )

    async def set_global_steps(self, global_steps: int) -> None:
        self._global_steps = global_steps

    async def _nothing(self, *_: Any, **__: Any) -> None:
        """Memory is not shared with a trainer, and no request is left over when a step ends."""

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    start_profile = stop_profile = abort_all_requests = resume_generation = _nothing


class LaptopReplica(RolloutReplica):  # type: ignore[misc]
    """Every replica is the same server: it batches what comes."""

    async def launch_servers(self) -> None:
        address = Environment().text("RLDBG_LAPTOP_SERVER")
        server = ray.remote(LaptopServer).options(name=_actor_name(self.replica_rank), max_concurrency=1000)
        self._server_handle = server.remote(self.config, address)
        self.servers = [self._server_handle]
        self._server_address = f"{address}/{self.replica_rank}" if self.replica_rank else address


class LaptopRollout(BaseRollout):  # type: ignore[misc]
    """Sends the policy's weights to the server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self._rank = Environment().integer("RANK", 0)
        self._replica = self._rank if replica_rank == -1 else replica_rank

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
        from safetensors.torch import save

        # Each tensor is gathered by all ranks; one of them sends it.
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights}
        if self._rank == 0:
            address = Environment().text("RLDBG_LAPTOP_SERVER")
            path = f"/update_weights_from_tensor?weight_version={global_steps or 0}"
            await asyncio.to_thread(post, address, path, save(tensors))
            asked = partial(post, address, "/weight_fingerprints", None)
            await asyncio.to_thread(record_served, asked, global_steps or 0)
        server = ray.get_actor(_actor_name(self._replica))
        await server.set_global_steps.remote(global_steps or 0)


def post(address: str, path: str, body: bytes | None) -> dict[str, Any]:
    """The server's answer, also to a GET, which has no body; an error of it is raised with its text."""
    kind = "application/json" if body is None or body[:1] == b"{" else "application/octet-stream"
    request = urllib.request.Request(f"http://{address}{path}", body, {"Content-Type": kind})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=600) as response:
            answer: dict[str, Any] = json.loads(response.read() or b"{}")
            return answer
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{path}: {error.code}: {error.read()[:500].decode(errors='replace')}") from error


def _actor_name(replica: int) -> str:
    return f"rldbg_laptop_server_{replica}"
