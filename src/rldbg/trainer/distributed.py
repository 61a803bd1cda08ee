"""What the ranks of the policy do together: find each other, start from the same weights, add up their gradients."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rldbg.core import PrerequisiteError, explained_as


class Ranks(Protocol):
    """How one rank exchanges tensors with the others; all of them make the same calls in the same order."""

    @property
    def size(self) -> int: ...

    def gather(self, tensor: Any) -> list[Any]:
        """Every rank's tensor, in rank order."""

    def add_up(self, tensor: Any) -> None:
        """Replaces the tensor by the sum over the ranks, in whatever order."""

    def take_from_first(self, tensor: Any) -> None:
        """Replaces the tensor by that of rank 0."""

    def leave(self) -> None: ...


class Meeting(Protocol):
    """Where ranks find each other."""

    def join(self, rank: int, device: Any) -> Ranks: ...


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where rank 0 listens and the number of ranks, each a process."""

    host: str
    port: int
    world_size: int

    def join(self, rank: int, device: Any) -> Ranks:
        """Makes this process one rank of the group."""
        import torch
        import torch.distributed as dist

        if self.world_size > 1:
            # NCCL refuses two ranks on one GPU; gloo carries them through the host.
            own_gpu = device.type == "cuda" and torch.cuda.device_count() >= self.world_size
            dist.init_process_group(
                "nccl" if own_gpu else "gloo",
                init_method=f"tcp://{self.host}:{self.port}",
                rank=rank,
                world_size=self.world_size,
            )
        return ProcessRanks(self.world_size)


class ProcessRanks:
    """Ranks that are processes of one torch.distributed group; a single rank does not need a group."""

    def __init__(self, size: int) -> None:
        self.size = size

    def gather(self, tensor: Any) -> list[Any]:
        import torch
        import torch.distributed as dist

        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor)
        return parts

    def add_up(self, tensor: Any) -> None:
        import torch.distributed as dist

        dist.all_reduce(tensor)

    def take_from_first(self, tensor: Any) -> None:
        import torch.distributed as dist

        dist.broadcast(tensor, src=0)

    def leave(self) -> None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def free_port(host: str, wanted: int = 0) -> int:
    """A port rank 0 can listen on; the requested one if it is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hint = "set policy.port to a free port, or to 0 to have one chosen"
        with explained_as(PrerequisiteError, OSError, f"policy rank 0 cannot listen on {host}:{wanted}", hint):
            probe.bind((host, wanted))
        return int(probe.getsockname()[1])


def broadcast_parameters(model: Any, ranks: Ranks) -> None:
    """Every rank gets the weights of rank 0."""
    import torch

    if ranks.size > 1:
        with torch.no_grad():
            for tensor in model.state_dict().values():
                ranks.take_from_first(tensor)


def shard(model: Any) -> None:
    """FSDP2 in place: each block a unit of its own, the rest one unit."""
    from torch.distributed.fsdp import fully_shard

    for block in _blocks(model):
        fully_shard(block)
    fully_shard(model)


def reshard(model: Any) -> None:
    """Frees what a forward pass gathered, so that parameters are shards between passes."""
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()


def _blocks(model: Any) -> Any:
    """The repeated layers: the longest list of modules a transformer has."""
    from torch.nn import ModuleList

    lists = [module for module in model.modules() if isinstance(module, ModuleList)]
    return max(lists, key=len, default=())


def sum_gradients(model: Any, ranks: Ranks, *, in_rank_order: bool) -> None:
    """Adds up the gradients of all ranks; afterwards all ranks have the same.

    In rank order the sum is ((rank 0 + rank 1) + rank 2) + ..., which can be repeated bit for bit; it needs memory
    for every rank's gradient. Otherwise the order is the library's.
    """
    import torch

    if ranks.size == 1:
        return
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    if in_rank_order:
        flat = add_in_order(ranks.gather(flat))
    else:
        ranks.add_up(flat)
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def add_in_order(parts: Sequence[Any]) -> Any:
    """The sum of tensors from the first to the last, in their own precision."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def whole_state(model: Any) -> dict[str, Any]:
    """The full state dict on CPU; a collective under FSDP, where only rank 0 gets it (the others get {})."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))
