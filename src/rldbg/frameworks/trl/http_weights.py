"""`python -m rldbg.frameworks.trl.http_weights SCRIPT ...`: a TRL script whose trainer sends weights over HTTP.

TRL's client of a vLLM server sends weights through NCCL, which needs a GPU on both sides. Against `rldbg serve` it
sends them as safetensors bodies instead, by vLLM's own routes; the rest of the client is TRL's. Other servers get what
they got before.
"""

import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rldbg.agent import arm_this_process
from rldbg.frameworks.weight_recording import record_served

_MOST_BYTES = 256 << 20


def install() -> None:
    """Changes TRL's client in this process. vLLM need not be installed."""
    from trl.generation import vllm_client, vllm_generation

    client = vllm_client.VLLMClient
    connect, update = client.init_communicator, client.update_named_params
    for module in (vllm_client, vllm_generation):
        module.is_vllm_available = lambda *_, **__: True
    client.init_communicator = _connecting(connect)
    client.update_named_params = _updating(update)


def _connecting(original: Callable[..., None]) -> Callable[..., None]:
    def init_communicator(self: Any, device: Any = 0) -> None:
        self.weights_over_http = bool(self._get(f"{self.base_url}/server_info").get("weights_over_http"))
        if not self.weights_over_http:
            original(self, device)
            return
        self._post(f"{self.base_url}/init_weight_transfer_engine", json={"init_info": {"backend": "http"}})

    return init_communicator


def _updating(original: Callable[..., None]) -> Callable[..., None]:
    def update_named_params(self: Any, metadata: Any, named_params: Iterable[tuple[str, Any]]) -> None:
        if not getattr(self, "weights_over_http", False):
            original(self, metadata, named_params)
            return
        self._post(f"{self.base_url}/start_weight_update", json={})
        headers = {"Content-Type": "application/octet-stream"}
        for body in _bodies(named_params):
            self._post(f"{self.base_url}/update_weights", data=body, headers=headers)
        self._post(f"{self.base_url}/finish_weight_update", json={})
        self.weight_updates = getattr(self, "weight_updates", -1) + 1
        record_served(
            lambda: self._get(f"{self.base_url}/weight_fingerprints"), self.weight_updates, engine=self.base_url
        )

    return update_named_params


def _bodies(named_params: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
    """The tensors as safetensors files of a bounded size."""
    from safetensors.torch import save

    held: dict[str, Any] = {}
    size = 0
    for name, tensor in named_params:
        # A copy: behind the last tensor TRL takes adapters out of the weights again.
        held[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size += held[name].nbytes
        if size >= _MOST_BYTES:
            yield save(held)
            held, size = {}, 0
    if held:
        yield save(held)


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m rldbg.frameworks.trl.http_weights SCRIPT [ARGUMENTS]")
    install()
    del sys.argv[0]
    # A run's changes of options are meant for the script, which no interpreter of its own starts.
    arm_this_process([sys.executable, *sys.argv])
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
