"""What the ranks of the policy do together: find each other, start from the same weights, add up their gradients."""

import socket
from dataclasses import dataclass
from typing import Any

from rldbg.core import PrerequisiteError


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where rank 0 listens and how many ranks come."""

    host: str
    port: int
    world_size: int


def free_port(host: str, wanted: int = 0) -> int:
    """A port rank 0 can listen on; the one wanted, if it is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except OSError as error:
            raise PrerequisiteError(
                f"policy rank 0 cannot listen on {host}:{wanted}: {error.strerror}",
                "set policy.port to a free port, or to 0 to have one chosen",
            ) from error
        return int(probe.getsockname()[1])


def join(rendezvous: Rendezvous, rank: int, device: Any) -> None:
    """Makes this process one rank of the group; a single rank needs none."""
    import torch
    import torch.distributed as dist

    if rendezvous.world_size == 1:
        return
    # NCCL refuses two ranks on one GPU; gloo carries them through the host.
    own_gpu = device.type == "cuda" and torch.cuda.device_count() >= rendezvous.world_size
    dist.init_process_group(
        "nccl" if own_gpu else "gloo",
        init_method=f"tcp://{rendezvous.host}:{rendezvous.port}",
        rank=rank,
        world_size=rendezvous.world_size,
    )


def leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def broadcast_parameters(model: Any) -> None:
    """Every rank takes over the weights of rank 0."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        with torch.no_grad():
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)


def shard(model: Any) -> None:
    """FSDP2 in place: each block a unit of its own, the rest one unit."""
    from torch.distributed.fsdp import fully_shard

    for block in _blocks(model):
        fully_shard(block)
    fully_shard(model)


def _blocks(model: Any) -> Any:
    """The repeated layers: the longest list of modules a transformer has."""
    from torch.nn import ModuleList

    lists = [module for module in model.modules() if isinstance(module, ModuleList)]
    return max(lists, key=len, default=())


def sum_gradients(model: Any) -> None:
    """Adds up the gradients of all ranks, in one message; afterwards all ranks have the same."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def whole_state(model: Any) -> dict[str, Any]:
    """The full state dict on CPU; a collective under FSDP, where only rank 0 gets it (the others get {})."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))
