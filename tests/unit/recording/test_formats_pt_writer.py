"""Files of the .pt writer as real torch reads them."""

import io
import zipfile

import numpy as np
import pytest
import torch

from rldbg.recording.formats.pt_reader import load_pt, verify_pt
from rldbg.recording.formats.pt_writer import AsList, dump_pt, encode_pt, zip_buffers
from rldbg.recording.records import ENCODED_DTYPES, EncodedArray, Ragged

TENSOR_DTYPES = ("bool", "uint8", "int8", "uint16", "uint32", "uint64", "int64", "float16", "float32", "complex64")
NAN, INF = float("nan"), float("inf")


def torch_loaded(tmp_path, value):
    """What torch makes of the file, in both of its modes, and mapped."""
    path = tmp_path / "value.pt"
    dump_pt(value, path)
    assert verify_pt(path) == ()
    torch.load(path, weights_only=False)
    torch.load(path, weights_only=True, mmap=True)
    return torch.load(path, weights_only=True)


def test_plain_data(tmp_path):
    value = {
        "none": None,
        "flags": [True, False],
        "mixed": [1, 2.5, "three", None, [4], (), (5, "six")],
        "integers": [0, 255, 256, 65535, 65536, -1, 2**31 - 1, -(2**31), 2**31, 2**63, -(2**80), 10**400],
        "floats": [0.1, -0.0, 1e308, INF, -INF],
        "text": "grüße \ud83d\ude00 " + chr(0x1F600),
        "bytes": bytes(range(256)),
        "complex": 1 - 2j,
        "empty": [{}, [], (), "", b""],
        "nested": {"a": {"b": [{"c": 1}]}},
        3: "integer key",
    }
    loaded = torch_loaded(tmp_path, value)
    assert loaded == value
    assert load_pt(tmp_path / "value.pt") == value
    assert str(loaded["floats"][1]) == "-0.0"


def test_numpy_scalars_become_python_numbers(tmp_path):
    loaded = torch_loaded(tmp_path, {"a": np.float32(0.5), "b": np.int64(-7), "c": np.bool_(True)})
    assert loaded == {"a": 0.5, "b": -7, "c": True}
    assert [type(item) for item in loaded.values()] == [float, int, bool]


@pytest.mark.parametrize(
    "array",
    [
        np.array([], np.int64),
        np.array([0, 255], np.uint8),
        np.array([0, 65535], np.int32),
        np.array([-1, 70000], np.int32),
        np.array([2**31, -(2**63), 2**63 - 1], np.int64),
        np.array([2**64 - 1, 0], np.uint64),
        np.array([True, False, True]),
        np.array([0.1, NAN, INF, -INF, -0.0], np.float64),
        np.array([0.1, 65504.0], np.float16),
        np.arange(5000, dtype=np.int64) * 1000,
        np.arange(10)[::2],
    ],
    ids=lambda array: f"{array.dtype}-{len(array)}",
)
def test_lists_of_numbers(tmp_path, array):
    loaded = torch_loaded(tmp_path, {"x": AsList(array)})["x"]
    assert type(loaded) is list and repr(loaded) == repr(array.tolist())


def test_ragged_and_encoded_lists(tmp_path):
    ragged = Ragged.from_rows([[1, 2, 3], [], [4]], np.int64)
    bf16 = EncodedArray(np.array([0x3F80, 0x7FC0, 0xFF80], np.uint16), "bfloat16")
    loaded = torch_loaded(tmp_path, [AsList(ragged), ragged, AsList(bf16), AsList(np.zeros((2, 2)))])
    assert repr(loaded) == repr(
        [[[1, 2, 3], [], [4]], [[1, 2, 3], [], [4]], [1.0, NAN, -INF], [[0.0, 0.0], [0.0, 0.0]]]
    )


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (0, 4), (2, 1, 3)])
@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "uint16", "uint32", "uint64", "int64", "float16", "float32", "complex64"]
)
def test_tensors(tmp_path, dtype, shape):
    array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    tensor = torch_loaded(tmp_path, array)
    assert tensor.dtype == getattr(torch, dtype) and tuple(tensor.shape) == shape
    assert np.array_equal(tensor.numpy(), array)
    assert np.array_equal(load_pt(tmp_path / "value.pt"), array)


@pytest.mark.parametrize("dtype", [name for name in ENCODED_DTYPES if hasattr(torch, name)])  # old torch has fewer
def test_tensors_of_dtypes_numpy_has_not(tmp_path, dtype):
    expected = torch.tensor([[0.0, -1.5], [NAN, 2.0]]).to(getattr(torch, dtype))
    width = np.uint16 if dtype == "bfloat16" else np.uint8
    bits = np.frombuffer(bytes(expected.untyped_storage()), width).reshape(2, 2)
    loaded = torch_loaded(tmp_path, EncodedArray(bits, dtype))
    assert loaded.dtype == expected.dtype
    assert bytes(loaded.untyped_storage()) == bytes(expected.untyped_storage())


def test_views_and_foreign_byte_orders_are_written_as_their_values(tmp_path):
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    loaded = torch_loaded(tmp_path, [base.T, base[:, 1], base.astype(">f4"), np.asfortranarray(base)])
    assert [item.tolist() for item in loaded] == [base.T.tolist(), base[:, 1].tolist(), base.tolist(), base.tolist()]


def test_array_data_is_passed_through_and_aligned():
    array = np.arange(100_000, dtype=np.float64)
    buffers = encode_pt({"x": array})
    shared = [item for item in buffers if np.shares_memory(np.frombuffer(item, np.uint8), array)]
    assert len(shared) == 1
    before = sum(len(item) for item in buffers[: buffers.index(shared[0])])
    assert before % 64 == 0


def test_an_open_file_is_a_target_too():
    file = io.BytesIO()
    dump_pt([1], file)
    assert torch.load(io.BytesIO(file.getvalue())) == [1]


def test_what_cannot_be_written_is_an_error(tmp_path):
    deep: list = []
    for _ in range(200):
        deep = [deep]
    for value, error in (({1, 2}, TypeError), (np.array(["a"]), TypeError), (deep, ValueError)):
        with pytest.raises(error):
            encode_pt(value)


@pytest.mark.soak
def test_more_members_than_a_plain_zip_can_count():
    data = b"".join(zip_buffers([(f"m{i}", [b"x"]) for i in range(70_000)]))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert len(archive.namelist()) == 70_000 and archive.read("m69999") == b"x"
