"""Process groups through which a trainer broadcasts its weights, by the names that SGLang's routes give them.

Gloo only: this server has no NCCL. The trainer is rank 0, and its stores have the prefixes of torch's own groups. Only
broadcasts are received, which are plain bytes; no object of another process is ever read.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rldbg.inference.request_error import RequestError
from rldbg.inference.serialized_tensors import byte_count, dtype_of, split

_JOIN = timedelta(minutes=5)
_MOST_BYTES = 64 << 30


class WeightGroups:
    def __init__(self) -> None:
        self._groups: dict[str, Any] = {}

    async def join(self, name: str, *, backend: str, address: str, port: int, rank: int, size: int) -> None:
        """Returns when all ranks have joined."""
        if backend != "gloo":
            raise RequestError(
                f"backend is {backend!r}; this server joins gloo groups only: broadcast from CPU tensors with backend "
                '"gloo", or POST the weights as a safetensors body to /update_weights'
            )
        if name in self._groups:
            raise RequestError(f"the group {name!r:.80} exists; POST /destroy_weights_update_group first")
        if not 0 < rank < size:
            raise RequestError(f"rank_offset is {rank} in a world of {size}; it must be from 1 to {size - 1}")
        try:
            self._groups[name] = await asyncio.to_thread(_joined, name, address, port, rank, size)
        except RuntimeError as error:  # what torch raises if nothing listens, or a rank does not join
            raise RequestError(f"no group at {address}:{port}: {str(error)[:300]}") from error

    async def receive(
        self, name: str, names: Sequence[str], dtypes: Sequence[Any], shapes: Sequence[Any], *, in_one_bucket: bool
    ) -> Mapping[str, Any]:
        """The tensors that rank 0 broadcasts next, one by one or as the bytes of one bucket."""
        if name not in self._groups:
            raise RequestError(f"no group {name!r:.80}: POST /init_weights_update_group first")
        if not len(names) == len(dtypes) == len(shapes):
            raise RequestError(
                f"{len(names)} names, {len(dtypes)} dtypes and {len(shapes)} shapes do not match in number"
            )
        kinds = [dtype_of(dtype) for dtype in dtypes]
        total = sum(byte_count(dtype, shape) for dtype, shape in zip(kinds, shapes, strict=True))
        if total > _MOST_BYTES:
            raise RequestError(f"the weights are larger than {_MOST_BYTES >> 30} GiB", 413)
        try:
            return await asyncio.to_thread(
                _broadcast, self._groups[name], names, kinds, shapes, total if in_one_bucket else None
            )
        except RuntimeError as error:
            self.leave(name)
            raise RequestError(f"the group {name!r:.80} failed and was left: {str(error)[:300]}") from error

    def leave(self, name: str) -> bool:
        return self._groups.pop(name, None) is not None


def _joined(name: str, address: str, port: int, rank: int, size: int) -> Any:
    from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

    store: Any = TCPStore(address, port, size, is_master=False, timeout=_JOIN, multi_tenant=True)
    for prefix in (name, f"{name}/", "cpu/"):
        store = PrefixStore(prefix, store)
    return ProcessGroupGloo(store, rank, size, _JOIN)


def _broadcast(
    group: Any, names: Sequence[str], dtypes: Sequence[Any], shapes: Sequence[Any], bucket_bytes: int | None
) -> dict[str, Any]:
    import torch

    if bucket_bytes is not None:
        buffer = torch.empty(bucket_bytes, dtype=torch.uint8)
        group.broadcast(buffer, 0).wait()
        return split(buffer, names, dtypes, shapes)
    tensors = {
        name: torch.empty(list(shape), dtype=dtype) for name, dtype, shape in zip(names, dtypes, shapes, strict=True)
    }
    for work in [group.broadcast(tensor, 0) for tensor in tensors.values()]:
        work.wait()
    return tensors
