"""Our safetensors files against the real package, in both directions, and headers that lie."""

import json
import struct

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, load_file, save, save_file

from rldbg.core import IncompleteDataError
from rldbg.recording.formats.safetensors_file import DTYPES, encode_header, open_tensors
from rldbg.recording.records import ENCODED_DTYPES, EncodedArray

ITEM = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def torch_tensor(dtype: str) -> torch.Tensor:
    return torch.tensor([[0, 1, 1], [1, 0, 1]]).to(getattr(torch, dtype))


def has(dtype: str) -> bool:
    """Whether torch and the package have it: older releases know fewer."""
    try:
        return load(save({"x": torch_tensor(dtype)}))["x"].dtype == getattr(torch, dtype)
    except (AttributeError, KeyError, SafetensorError):
        return False


COMMON_DTYPES = [dtype for dtype in DTYPES if has(dtype)]


@pytest.mark.parametrize("dtype", COMMON_DTYPES)
def test_files_of_the_package_are_read(tmp_path, dtype):
    path = tmp_path / "x.safetensors"
    tensor = torch_tensor(dtype)
    save_file({"x": tensor, "empty": tensor[:0]}, path, metadata={"who": "them"})
    metadata, tensors = open_tensors(path)
    assert metadata == {"who": "them"}
    x = tensors["x"]
    if dtype in ENCODED_DTYPES:
        assert isinstance(x, EncodedArray) and x.dtype == dtype
        assert np.array_equal(x.decode(), tensor.float().numpy())
    else:
        assert x.dtype == np.dtype(dtype) and np.array_equal(x, tensor.numpy())
    assert tensors["empty"].shape == (0, 3)


@pytest.mark.parametrize("dtype", COMMON_DTYPES)
def test_the_package_reads_ours(tmp_path, dtype):
    path = tmp_path / "x.safetensors"
    tensor = torch_tensor(dtype)
    raw = bytes(tensor.untyped_storage())
    header = encode_header([("x", dtype, (2, 3), len(raw)), ("none", "float32", (0,), 0)], {"who": "we"})
    assert len(header) % 64 == 0
    path.write_bytes(header + raw)
    loaded = load_file(path)
    assert loaded["x"].dtype == tensor.dtype and bytes(loaded["x"].untyped_storage()) == raw
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"who": "we"}
    assert open_tensors(path)[1]["x"].shape == (2, 3)


def test_large_files_are_mapped_not_read(tmp_path):
    path = tmp_path / "x.safetensors"
    array = np.arange(1 << 16, dtype=np.float64)
    path.write_bytes(encode_header([("x", "float64", array.shape, array.nbytes)], {}) + array.tobytes())
    loaded = open_tensors(path)[1]["x"]
    root = loaded
    while isinstance(root, np.ndarray):
        root = root.base
    assert type(root.obj).__name__ == "mmap" and not loaded.flags.writeable and loaded.flags.aligned
    assert np.array_equal(loaded, array)


def written(tmp_path, header: object, data: bytes = bytes(8)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_an_honest_small_file_is_read(tmp_path):
    assert open_tensors(written(tmp_path, {"x": ITEM}))[1]["x"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"x": ITEM | {"data_offsets": [0, 12]}}, "does not take"),
        ({"x": ITEM | {"data_offsets": [8, 0]}}, "does not take"),
        ({"x": ITEM | {"data_offsets": [-8, 0]}}, "has shape"),
        ({"x": ITEM | {"data_offsets": [0]}}, "has shape"),
        ({"x": ITEM | {"data_offsets": [0.0, 8.0]}}, "has shape"),
        ({"x": ITEM | {"shape": [1 << 61, 1 << 61]}}, "does not take"),
        ({"x": ITEM | {"shape": [-2, -1]}}, "has shape"),
        ({"x": ITEM | {"shape": [True, 2]}}, "has shape"),
        ({"x": ITEM | {"shape": [1] * 40 + [2]}}, "has shape"),
        ({"x": ITEM | {"dtype": "F31"}}, "unknown dtype"),
        ({"x": ITEM | {"dtype": ["F32"]}}, "unknown dtype"),
        ({"x": ITEM | {"more": 1}}, "no dtype, shape"),
        ({"x": [1]}, "no dtype, shape"),
        ({"x": ITEM, "y": ITEM}, "starts at byte 0 instead of 8"),
        ({"x": ITEM | {"shape": [1], "data_offsets": [4, 8]}}, "starts at byte 4"),
        ({"x": ITEM | {"shape": [1], "data_offsets": [0, 4]}}, "tensors end at byte"),
        ({"x": ITEM | {"shape": [4], "data_offsets": [0, 16]}}, "tensors end at byte"),
        ({"x": ITEM | {"dtype": "BOOL", "shape": [8]}}, "holds bytes other"),
        ({"x": ITEM, "__metadata__": {"a": 1}}, "__metadata__"),
        ([1, 2], "not a JSON object"),
        (b'{"x": 1, "x": 2}', "one key twice"),
        (b'{"x": \xff}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"x": ' + b"9" * 10_000 + b"}", "cannot be decoded"),
        (b"", "not JSON"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path, header, reason):
    data = b"\x02" * 8 if reason == "holds bytes other" else bytes(8)
    with pytest.raises(IncompleteDataError, match=reason) as caught:
        open_tensors(written(tmp_path, header, data))
    assert "bad.safetensors" in caught.value.message and caught.value.hint


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 1 << 63) + b"{}", struct.pack("<Q", 9) + b"{}"])
def test_header_lengths_beyond_the_file(tmp_path, data):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(IncompleteDataError, match="bad"):
        open_tensors(path)


def test_two_tensors_of_one_name_cannot_be_written():
    with pytest.raises(ValueError, match="two tensors"):
        encode_header([("x", "float32", (1,), 4), ("x", "float32", (1,), 4)], {})
