"""Tensors that leave a device as one piece arrive as what they were. Tried on the CPU: the way is the same."""

import numpy as np
import pytest
import torch

from rldbg.recording.recorder.device import Landing, Parcel, parcels_of
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


def travel(parcel: Parcel, way: str) -> None:
    for source, target in getattr(parcel, way)():
        np.copyto(target, source.numpy())


@pytest.mark.parametrize("way", ["clone", "in_place"])
@pytest.mark.parametrize("names", [list(TENSORS), ["empty"], ["turned"], ["number", "tokens"]])
def test_every_tensor_arrives(way: str, names: list[str]) -> None:
    landings = {name: Landing(TENSORS[name]) for name in names}
    (parcel,) = parcels_of(list(landings.values()), HeapMemory().take)
    travel(parcel, way)
    for name, landing in landings.items():
        array = landing.array()
        found = torch.from_numpy(array.decode() if isinstance(array, EncodedArray) else array)
        torch.testing.assert_close(found, TENSORS[name].to(found.dtype), equal_nan=True, rtol=0, atol=0)
        values = array.bits if isinstance(array, EncodedArray) else array
        assert values.flags.aligned


def test_a_clone_is_not_the_tensor_of_the_caller() -> None:
    tensors = [torch.ones(4), torch.ones(3, dtype=torch.int64)]
    (both,) = parcels_of([Landing(tensor) for tensor in tensors], HeapMemory().take)
    (one,) = parcels_of([Landing(tensors[0])], HeapMemory().take)
    copies = [*both.clone(), *one.clone()]
    for tensor in tensors:
        tensor.fill_(77)
    assert all(77 not in source.view(torch.uint8).tolist() for source, _ in copies)
    assert all((source == 0).any() for source, _ in copies)


def test_large_tensors_travel_apart() -> None:
    sizes = [2**20, 40 * 2**20, 2**20, 2**20, 31 * 2**20]
    landings = [Landing(torch.empty(size, dtype=torch.uint8)) for size in sizes]
    parcels = parcels_of(landings, HeapMemory().take)
    assert [parcel.nbytes for parcel in parcels] == [2**20, 40 * 2**20, 2 * 2**20, 31 * 2**20]
