"""The .pt reader against files that real torch wrote."""

import collections
import datetime
import enum
import io
import json
import pickle
import subprocess
import sys
import typing
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from rldbg.core import IncompleteDataError
from rldbg.recording.formats.pt_reader import Opaque, load_pickle, load_pt, ragged_from_lists, verify_pt
from rldbg.recording.records import ENCODED_DTYPES, EncodedArray

PLAIN_DTYPES = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128"


def saved(tmp_path: Path, value: object, **options: object) -> Path:
    path = tmp_path / "value.pt"
    torch.save(value, path, **options)
    return path


@pytest.mark.parametrize("name", PLAIN_DTYPES.split())
def test_every_numpy_dtype(tmp_path, name):
    tensor = torch.tensor([[0, 1], [1, 0]]).to(getattr(torch, name))
    array = load_pt(saved(tmp_path, tensor))
    assert array.dtype == np.dtype(name)
    assert np.array_equal(array, tensor.numpy())


@pytest.mark.parametrize("name", [name for name in ENCODED_DTYPES if hasattr(torch, name)])  # old torch has fewer
def test_dtypes_numpy_has_not(tmp_path, name):
    tensor = torch.tensor([0.0, -1.5, 0.25, float("nan")]).to(getattr(torch, name))
    array = load_pt(saved(tmp_path, {"x": tensor}))["x"]
    assert isinstance(array, EncodedArray) and array.dtype == name
    assert np.array_equal(array.decode(), tensor.float().numpy(), equal_nan=True)


def test_lazy_conjugates_and_negatives_have_their_values(tmp_path):
    numbers = torch.tensor([1 + 2j, -3 - 4j])
    views = {"conjugate": numbers.conj(), "negative": numbers.conj().imag, "both": numbers.conj()[1:], "as is": numbers}
    for name, view in views.items():
        found = load_pt(saved(tmp_path, view))
        np.testing.assert_array_equal(found, view.resolve_conj().resolve_neg().numpy(), name)


def test_half_complex_is_read_exactly(tmp_path):
    halves = torch.tensor([[1.5, -2.0], [0.25, 65504.0]], dtype=torch.float16)
    found = load_pt(saved(tmp_path, torch.view_as_complex(halves)))
    assert found.dtype == np.complex64
    assert found.tolist() == [1.5 - 2j, 0.25 + 65504j]


def test_numpy_dates_keep_their_unit(tmp_path):
    dates = {
        "day": np.datetime64("2026-11-15"),
        "steps": np.array([1, 2], "m8[25us]"),
        "none": np.datetime64("NaT", "s"),
    }
    found = load_pt(saved(tmp_path, dates))
    assert {name: str(np.asarray(value).dtype) for name, value in found.items()} == {
        "day": "datetime64[D]",
        "steps": "timedelta64[25us]",
        "none": "datetime64[s]",
    }
    assert found["day"] == dates["day"]


def test_names_of_old_pickles_are_data(tmp_path):
    """torch.save writes protocol 2, in which range is called xrange."""
    found = load_pt(saved(tmp_path, {"range": range(3), "type": str, "any": typing.Any}))
    assert (found["range"].name, found["range"].args) == ("range", (0, 3, 1))


def test_views_share_their_storage(tmp_path):
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    views = {
        "base": base,
        "transposed": base.t(),
        "row": base[2],
        "column": base[:, 3],
        "block": base[1:3, 2:5],
        "expanded": base[0:1].expand(3, 6),
        "scalar": base[1, 1],
        "empty": base[:0],
    }
    loaded = load_pt(saved(tmp_path, views))
    for name, view in views.items():
        assert loaded[name].shape == tuple(view.shape)
        assert np.array_equal(loaded[name], view.numpy()), name
    assert np.shares_memory(loaded["base"], loaded["transposed"])
    assert not loaded["base"].flags.writeable


def test_large_tensors_are_views_of_the_mapped_file(tmp_path):
    array = load_pt(saved(tmp_path, torch.arange(1 << 16)))
    root = array
    while isinstance(root, np.ndarray):
        root = root.base
    assert type(root.obj).__name__ == "mmap"


def test_parameters_dtypes_sizes_devices(tmp_path):
    state = torch.nn.Linear(2, 3).state_dict()
    value = {
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "size": torch.Size((2, 3)),
        "dtype": torch.float32,
        "device": torch.device("cuda", 1),
        "layout": torch.strided,
        "state": state,
    }
    loaded = load_pt(saved(tmp_path, value))
    assert np.array_equal(loaded["parameter"], [1, 1])
    assert loaded["size"] == (2, 3) and loaded["dtype"] == "torch.float32" and loaded["device"] == "cuda:1"
    assert np.array_equal(loaded["state"]["weight"], state["weight"].numpy())


def test_plain_data_is_returned_as_it_was(tmp_path):
    value = {
        "list": [1, 2.5, -(2**40), True, None, "text", b"bytes"],
        "nested": ({"a": [(1,), {2, 3}, frozenset({4})]}, complex(1, 2), bytearray(b"x")),
        "ordered": collections.OrderedDict(a=1),
        "default": collections.defaultdict(list, a=[1]),
        "when": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "huge": 10**40,
        "special": [float("inf"), float("-inf")],
        7: "integer key",
    }
    assert load_pt(saved(tmp_path, value)) == value


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_numpy_values_in_every_pickle_protocol(tmp_path, protocol):
    value = {
        "scalar": np.float32(1.5),
        "flag": np.bool_(True),
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.arange(3, dtype=">i4"),
        "objects": np.array(["a", {"b": np.arange(2)}], dtype=object),
        "text": np.array(["ab", "c"]),
        "empty": np.empty((0, 3), np.float32),
    }
    loaded = load_pickle(pickle.dumps(value, protocol))
    assert loaded["scalar"] == 1.5 and loaded["scalar"].dtype == np.float32
    for name in ("array", "fortran", "big", "text", "empty"):
        assert np.array_equal(loaded[name], value[name]) and loaded[name].shape == value[name].shape
    assert loaded["objects"][0] == "a" and np.array_equal(loaded["objects"][1]["b"], [0, 1])


class Sample:
    def __init__(self):
        self.tokens = [1, 2]
        self.weights = torch.ones(2)


def test_unknown_classes_are_inert_data(tmp_path):
    loaded = load_pt(saved(tmp_path, {"sample": Sample()}))["sample"]
    assert isinstance(loaded, Opaque)
    assert (loaded.module, loaded.name) == (Sample.__module__, "Sample")
    assert loaded.attributes()["tokens"] == [1, 2]
    assert np.array_equal(loaded.attributes()["weights"], [1, 1])


class Outer:
    class Status(enum.Enum):
        FAILED = "failed"

    class Refusal(Exception):
        pass


@pytest.mark.parametrize("protocol", range(2, 6))
def test_classes_inside_classes_and_exceptions_are_inert_data(protocol):
    """Protocols before 4 name a class inside a class by getattr; some Pythons name the member of an enum so, too."""
    held = [Outer.Status.FAILED, Outer.Refusal("no"), ZeroDivisionError("x"), json.JSONDecodeError("m", "d", 0)]
    found = load_pickle(pickle.dumps(held, protocol))
    names = [item.name for item in found]
    assert names[1:] == ["Outer.Refusal", "ZeroDivisionError", "JSONDecodeError"]
    assert (names[0], getattr(found[0], "args", ())) in (("Outer.Status", ("failed",)), ("Outer.Status.FAILED", ()))


class Node:
    def __init__(self, parent=None):
        self.parent = parent
        self.children = [] if parent else [Node(self), Node(self)]


def test_objects_that_know_their_parents_are_data_and_lists_that_hold_themselves_are_not(tmp_path):
    found = load_pt(saved(tmp_path, {"tree": Node(), "loss": 0.5}))
    children = found["tree"].attributes()["children"]
    assert [child.attributes()["parent"] for child in children] == [repr(found["tree"])] * 2
    assert found["loss"] == 0.5
    loop: list = []
    loop.append(loop)
    with pytest.raises(IncompleteDataError, match="contains itself"):
        load_pt(saved(tmp_path, loop))


def test_big_endian_storages(tmp_path):
    path = saved(tmp_path, torch.tensor([1.0, 2.0]))
    swapped = tmp_path / "big.pt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(swapped, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("byteorder"):
                data = b"big"
            elif name.endswith("data/0"):
                data = np.frombuffer(data, "<f4").astype(">f4").tobytes()
            new.writestr(name, data)
    assert load_pt(swapped).tolist() == [1.0, 2.0]


def test_files_saved_without_checksums(tmp_path):
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(tmp_path, torch.ones(2))
    finally:
        torch.serialization.set_crc32_options(before)
    assert load_pt(path).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("arrays", [False, True])
def test_files_from_before_zip_archives(tmp_path, arrays):
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    value = {"whole": whole, "view": whole[1:, ::2], "brain": torch.ones(2, dtype=torch.bfloat16), "list": [1] * 40}
    value |= {
        "flags": torch.tensor([True, False]),
        "number": torch.tensor(2.5),
        "none": torch.empty(0, dtype=torch.int64),
    }
    path = saved(tmp_path, value, _use_new_zipfile_serialization=False)
    found = load_pt(path, arrays=arrays)
    for name in ("whole", "view", "flags", "number", "none"):
        np.testing.assert_array_equal(found[name], value[name].numpy(), name)
    assert (found["brain"].dtype, list(found["list"])) == ("bfloat16", [1] * 40)
    assert verify_pt(path) == ()


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-4], lambda data: data.replace(b"cpu", b"c\xffu"), lambda data: data[:60]]
)
def test_a_damaged_file_from_before_zip_archives_is_an_error(tmp_path, damage):
    path = saved(tmp_path, {"x": torch.ones(8)}, _use_new_zipfile_serialization=False)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(IncompleteDataError, match=r"value\.pt"):
        load_pt(path)


def test_raw_pickles_are_refused(tmp_path):
    raw = tmp_path / "raw.pt"
    raw.write_bytes(pickle.dumps([1]))
    with pytest.raises(IncompleteDataError, match="raw pickle") as caught:
        load_pt(raw)
    assert "torch.save" in caught.value.hint
    assert load_pickle(raw) == [1]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")  # torch leaves them; old dumps have them
def test_quantized_tensors_are_refused(tmp_path):
    path = saved(tmp_path, torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
    with pytest.raises(IncompleteDataError, match="quantized"):
        load_pt(path)


def test_changed_bytes_of_a_storage_are_found_by_verify(tmp_path):
    path = saved(tmp_path, {"x": torch.arange(100)})
    assert verify_pt(path) == ()
    data = bytearray(path.read_bytes())
    at = data.index(np.arange(3, 9).tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert [name.partition("/")[2] for name in verify_pt(path)] == ["data/0"]


def test_missing_file_names_itself(tmp_path):
    with pytest.raises(IncompleteDataError, match=r"nothing\.pt: no such file"):
        load_pt(tmp_path / "nothing.pt")


def test_reading_does_not_import_torch(tmp_path):
    path = saved(tmp_path, {"x": torch.ones(2)})
    code = """
import sys
from rldbg.recording.formats.pt_reader import load_pt
load_pt(sys.argv[1])
print("torch" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_ragged_from_lists():
    ragged = ragged_from_lists([[1, 2], [], [3]], np.int64)
    assert [row.tolist() for row in ragged] == [[1, 2], [], [3]]
    assert ragged_from_lists([], np.float32).values.dtype == np.float32
    assert ragged_from_lists([np.arange(3)], np.int32).values.tolist() == [0, 1, 2]
    with pytest.raises(ValueError):
        ragged_from_lists([[2**70]], np.int64)
    with pytest.raises(TypeError):
        ragged_from_lists([[1.5]], np.int64)


def test_bytes_inside_a_pickle():
    buffer = io.BytesIO()
    torch.save({"x": torch.ones(2)}, buffer)
    assert load_pt(buffer.getvalue())["x"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_tensors_in_plain_pickles(protocol):
    base = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    value = {"a": base.t(), "b": base.bfloat16(), "c": torch.tensor([True, False]), "d": torch.empty(0)}
    loaded = load_pickle(pickle.dumps(value, protocol))
    assert np.array_equal(loaded["a"], base.t().numpy())
    assert np.array_equal(loaded["b"].decode(), base.numpy())
    assert loaded["c"].tolist() == [True, False] and loaded["d"].shape == (0,)


class Shard0:
    """Pickles as a DTensor does, without the seconds it takes to import them."""

    def __init__(self, local):
        self.local = local

    def __reduce__(self):
        arguments = (Shard0, torch.float32, (4, 3), (3, 1), 0, torch.strided, torch.device("cpu"), False)
        state = (None, {"_local_tensor": self.local, "_spec": Sample()})
        rebuild = torch._utils._rebuild_wrapper_subclass
        return torch._tensor._rebuild_from_type_v2, (rebuild, Shard0, arguments, state)


def test_a_wrapped_tensor_is_its_local_shard(tmp_path):
    loaded = load_pt(saved(tmp_path, {"x": Shard0(torch.arange(6.0).reshape(2, 3))}))
    assert loaded["x"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.soak
def test_a_distributed_tensor_is_its_local_shard(tmp_path):
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        tensor = distribute_tensor(torch.arange(6.0).reshape(2, 3), init_device_mesh("cpu", (1,)), [Shard(0)])
        loaded = load_pt(saved(tmp_path, {"x": tensor}))
    finally:
        distributed.destroy_process_group()
    assert loaded["x"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
