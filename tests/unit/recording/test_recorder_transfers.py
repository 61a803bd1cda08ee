"""Tensors that leave a device as one piece arrive as what they were. Tried on the CPU: the way is the same."""

import numpy as np
import pytest
import torch

from rldbg.recording.recorder.device import PendingCopy, TransferBatch, transfer_batches
from rldbg.recording.recorder.memory import HeapMemory
from rldbg.recording.records import EncodedArray

TENSORS = {
    "empty": torch.empty(0, 5),
    "flags": torch.tensor([True, False, True]),
    "number": torch.tensor(0.5),
    "tokens": torch.arange(12).reshape(3, 4),
    "turned": torch.arange(12, dtype=torch.float64).reshape(3, 4).T,
    "spread": torch.tensor([1.5]).expand(7),
    "brain": torch.tensor([[1.0, float("nan"), -0.0]], dtype=torch.bfloat16),
    "complex": torch.tensor([1 + 2j, 3j]),
}


def travel(batch: TransferBatch, way: str) -> None:
    for source, target in getattr(batch, way)():
        np.copyto(target, source.numpy())


@pytest.mark.parametrize("way", ["clone", "in_place"])
@pytest.mark.parametrize("names", [list(TENSORS), ["empty"], ["turned"], ["number", "tokens"]])
def test_every_tensor_arrives(way: str, names: list[str]) -> None:
    pending = {name: PendingCopy(TENSORS[name]) for name in names}
    (batch,) = transfer_batches(list(pending.values()), HeapMemory().take)
    travel(batch, way)
    for name, copy in pending.items():
        array = copy.array()
        found = torch.from_numpy(array.decode() if isinstance(array, EncodedArray) else array)
        torch.testing.assert_close(found, TENSORS[name].to(found.dtype), equal_nan=True, rtol=0, atol=0)
        values = array.bits if isinstance(array, EncodedArray) else array
        assert values.flags.aligned


def test_a_clone_is_not_the_tensor_of_the_caller() -> None:
    tensors = [torch.ones(4), torch.ones(3, dtype=torch.int64)]
    (both,) = transfer_batches([PendingCopy(tensor) for tensor in tensors], HeapMemory().take)
    (one,) = transfer_batches([PendingCopy(tensors[0])], HeapMemory().take)
    copies = [*both.clone(), *one.clone()]
    for tensor in tensors:
        tensor.fill_(77)
    assert all(77 not in source.view(torch.uint8).tolist() for source, _ in copies)
    assert all((source == 0).any() for source, _ in copies)


def test_large_tensors_travel_apart() -> None:
    sizes = [2**20, 40 * 2**20, 2**20, 2**20, 31 * 2**20]
    pending = [PendingCopy(torch.empty(size, dtype=torch.uint8)) for size in sizes]
    batches = transfer_batches(pending, HeapMemory().take)
    assert [batch.nbytes for batch in batches] == [2**20, 40 * 2**20, 2 * 2**20, 31 * 2**20]
