"""Several ranks of one job, as torchrun starts them: each has a part of the rows, and all know the whole result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from rldbg.core import Environment, PrerequisiteError, UsageError

if TYPE_CHECKING:
    import torch

_TIMEOUT = timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class LossRanks:
    """This process among its peers. With one rank, nothing is sent anywhere."""

    rank: int
    count: int
    device: Any

    def rows(self, total: int) -> slice:
        """This rank's rows: equal parts, the first ones longer by one where it does not divide."""
        if total < self.count:
            raise UsageError(f"{total} rows are too few for {self.count} ranks", "start fewer ranks")
        share, rest = divmod(total, self.count)
        start = self.rank * share + min(self.rank, rest)
        return slice(start, start + share + (self.rank < rest))

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, in order."""
        if self.count == 1:
            return part
        import torch

        parts = self.objects(part.detach().cpu())
        return torch.cat(parts).to(self.device)

    def objects(self, mine: Any) -> list[Any]:
        """What every rank has to say, by rank."""
        if self.count == 1:
            return [mine]
        import torch.distributed as dist

        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, mine)
        return found

    def summed(self, tensors: list[torch.Tensor]) -> None:
        """Adds up each tensor over the ranks, in place."""
        if self.count == 1:
            return
        import torch.distributed as dist

        for tensor in tensors:
            dist.all_reduce(tensor)


@contextmanager
def ranks_of_this_job(device: Literal["auto", "cpu", "cuda"]) -> Iterator[LossRanks]:
    """Joins the process group that torchrun describes in the environment; alone without it."""
    import torch

    environment = Environment()
    count = environment.integer("WORLD_SIZE", 1)
    rank = environment.integer("RANK", 0)
    chosen = choose_device(device, local_rank=environment.integer("LOCAL_RANK", 0))
    if count == 1:
        yield LossRanks(0, 1, chosen)
        return
    import torch.distributed as dist

    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # Two ranks on one GPU cannot form an nccl group.
    own_gpu = chosen.type == "cuda" and torch.cuda.device_count() >= environment.integer("LOCAL_WORLD_SIZE", count)
    dist.init_process_group("nccl" if own_gpu else "gloo", rank=rank, world_size=count, timeout=_TIMEOUT)
    try:
        yield LossRanks(rank, count, chosen)
    finally:
        dist.destroy_process_group()


def choose_device(wanted: Literal["auto", "cpu", "cuda"], *, local_rank: int = 0) -> torch.device:
    """The torch device that is asked for; `auto` takes a GPU if there is one."""
    import torch

    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise PrerequisiteError("a GPU was requested, but torch finds none", "set the device to auto or cpu")
    if wanted == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())
