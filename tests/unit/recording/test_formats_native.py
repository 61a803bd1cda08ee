"""rldbg's own file: micro-batches joined without copying, cut apart again on demand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from rldbg.core import IncompleteDataError, SampleId
from rldbg.recording.formats import native
from rldbg.recording.formats.safetensors_file import encode_header
from rldbg.recording.records import EncodedArray, Ragged, Record, RecordKey


def micro(index: int, **fields: object) -> Record:
    samples = tuple(SampleId(f"g{index}", run) for run in range(2))
    return Record(RecordKey("forward_data", 4, 1, index), fields, samples, ("a", "b"), "policy", {"dp": 1}, 7)


def written(folder: Path, records: list[Record]) -> Path:
    path = folder / "x.safetensors"
    header, buffers = native.encode(records)
    path.write_bytes(header + b"".join(buffers))
    return path


def test_micro_batches_come_apart_as_they_were_joined(tmp_path):
    records = [
        micro(
            index,
            log_probs=np.full((2, 3 + index), index, np.float32),
            entropy=EncodedArray(np.full((2, 2), index, np.uint16), "bfloat16"),
            tokens=Ragged.from_rows([[index] * index, [9]], np.int32),
            loss=index / 2,
        )
        for index in range(4)
    ]
    file = native.decode(written(tmp_path, records))
    assert [key.micro for key in file.keys] == [0, 1, 2, 3]
    for index in (3, 0, 2, 1):
        record = file.read(index)
        assert record.key == records[index].key and record.samples == records[index].samples
        assert (record.role, record.coordinates, record.policy_version) == ("policy", {"dp": 1}, 7)
        assert record.fields["log_probs"].shape == (2, 3 + index) and (record.fields["log_probs"] == index).all()
        assert record.fields["entropy"].bits.tolist() == [[index, index]] * 2
        assert [row.tolist() for row in record.fields["tokens"]] == [[index] * index, [9]]
        assert record.fields["loss"] == index / 2
        assert record.source.endswith("x.safetensors")


@pytest.mark.parametrize(
    "odd", [float("inf"), -(2**53) - 1, 2**60, b"x", [1, {"$a": 1}], np.float32(0.5), {"$int": 1}, {3: 4}, {}]
)
def test_one_odd_row_among_plain_ones_is_kept(tmp_path, odd):
    plain = {"text": "a", "length": 3, "reward": 0.5, "correct": True, "error": None}
    for row in ({"odd": odd, "text": "b"}, {"$odd": odd}, odd):
        rows = [plain, row, dict(plain)]
        assert native.decode(written(tmp_path, [micro(0, extra_fields=rows)])).read(0).fields["extra_fields"] == rows


def test_a_field_may_be_missing_from_some_micro_batches(tmp_path):
    ragged = Ragged.from_rows([[1]], np.int64)
    records = [micro(0, a=np.ones(2)), micro(1, b=ragged), micro(2, a=np.zeros(3), c=None), micro(3)]
    file = native.decode(written(tmp_path, records))
    assert [set(file.read(index).fields) for index in range(4)] == [{"a"}, {"b"}, {"a", "c"}, set()]
    assert file.read(2).fields["a"].tolist() == [0, 0, 0] and file.read(2).fields["c"] is None


def test_nothing_is_copied_on_the_way_out_and_in(tmp_path):
    arrays = [np.arange(50_000, dtype=np.float32) for _ in range(2)]
    header, buffers = native.encode([micro(index, x=array) for index, array in enumerate(arrays)])
    assert all(np.shares_memory(np.frombuffer(b, np.uint8), a) for b, a in zip(buffers, arrays, strict=True))
    path = tmp_path / "x.safetensors"
    path.write_bytes(header + b"".join(buffers))
    value = native.decode(path).read(1).fields["x"]
    assert value.base is not None and not value.flags.writeable and value.flags.aligned


def test_tensors_are_aligned_whatever_their_order(tmp_path):
    fields = {f"x{i}": np.ones(3, dtype) for i, dtype in enumerate(("u1", "f8", "f2", "i4", "c16"))}
    path = written(tmp_path, [micro(0, **fields)])
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors = [item for name, item in json.loads(raw[8:start]).items() if name != "__metadata__"]
    spans = [(*item["data_offsets"], math.prod(item["shape"])) for item in tensors]
    places = [(begin, (end - begin) // count) for begin, end, count in spans]
    assert start % 64 == 0 and {width for _, width in places} == {1, 2, 4, 8}
    assert all(begin % width == 0 for begin, width in places)
    with safe_open(path, "np") as file:
        assert set(file.keys()) == set(fields)


@pytest.mark.parametrize(
    "other",
    [
        Record(RecordKey("forward_data", 5, 1, 1), {}),
        micro(1, x=np.ones(2, np.float64)),
        micro(1, x=Ragged.from_rows([[1.0]], np.float32)),
        micro(1, x=1.0),
    ],
)
def test_what_cannot_share_a_file_is_an_error(other):
    first = micro(0, x=np.ones(2, np.float32))
    assert not native.can_join(first, other)
    with pytest.raises(ValueError, match="cannot share a file"):
        native.encode([first, other])


def test_field_names_that_collide_are_an_error():
    with pytest.raises(ValueError, match="two tensors"):
        native.encode([micro(0, **{"a": Ragged.from_rows([[1]], np.int64), "a.lengths": np.ones(1)})])


def description(**changes: object) -> dict:
    return {
        "schema_version": 1,
        "kind": "k",
        "step": 0,
        "epoch": 0,
        "mini_batch": 0,
        "rank": 0,
        "role": "",
        "coordinates": {},
        "policy_version": None,
        "micros": [0],
        "rows": [1],
        "samples": [["g", 0]],
        "prompt_hashes": [],
        "fields": {"x": {"layout": "dense", "shapes": [[2]]}},
        "extra": [None],
    } | changes


def stored(folder: Path, metadata: object) -> Path:
    path = folder / "bad.safetensors"
    tensors = [("n", "float64", (2,), 16), ("r.lengths", "int64", (1,), 8), ("x", "float32", (2,), 8)]
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    data = bytes(16) + np.array([2]).tobytes() + bytes(8)
    path.write_bytes(encode_header([*tensors, ("r", "uint8", (2,), 2)], {"rldbg": text}) + data + b"ab")
    return path


def test_a_file_as_the_specification_says_is_read(tmp_path):
    fields = {
        "x": {"layout": "dense", "shapes": [[1, 2]]},
        "r": {"layout": "ragged", "rows": [1]},
        "d": {"layout": "data", "values": [{"$float": "nan"}]},
        "n": {"layout": "dense", "shapes": [[1]], "dtype": "complex128"},
    }
    record = native.decode(stored(tmp_path, description(fields=fields))).read(0)
    assert record.fields["x"].shape == (1, 2) and record.fields["r"][0].tolist() == [97, 98]
    assert repr(record.fields["d"]) == "nan" and record.fields["n"].tolist() == [0j]


@pytest.mark.parametrize(
    "metadata",
    [
        "[]",
        "{}",
        "{",
        description(schema_version=2),
        description(step="0"),
        description(rank=True),
        description(kind=None),
        description(coordinates={"dp": "0"}),
        description(policy_version=1.5),
        description(micros=[0, 1]),
        description(rows=[-1]),
        description(rows=[2]),
        description(samples=[["g"]]),
        description(samples=[[0, 0]]),
        description(prompt_hashes=[1]),
        description(extra=[]),
        description(fields=[]),
        description(fields={"x": 1}),
        description(fields={"x": {"layout": "other"}}),
        description(fields={"x": {"layout": "dense", "shapes": [[3]]}}),
        description(fields={"x": {"layout": "dense", "shapes": [[-2]]}}),
        description(fields={"x": {"layout": "dense", "shapes": [2]}}),
        description(fields={"x": {"layout": "dense", "shapes": []}}),
        description(fields={"x": {"layout": "ragged", "rows": [1]}}),
        description(fields={"r": {"layout": "ragged", "rows": [2]}}),
        description(fields={"r": {"layout": "ragged", "rows": [None]}}),
        description(fields={"x": {"layout": "dense", "shapes": [[1]], "dtype": "complex128"}}),
        description(fields={"absent": {"layout": "dense", "shapes": [[2]]}}),
        description(fields={"d": {"layout": "data", "values": []}}),
    ],
    ids=lambda metadata: str(metadata)[:40] if isinstance(metadata, str) else "",
)
def test_descriptions_that_lie_are_refused(tmp_path, metadata):
    with pytest.raises(IncompleteDataError, match="bad") as caught:
        native.decode(stored(tmp_path, metadata))
    assert caught.value.hint


@pytest.mark.parametrize(
    "value",
    [
        {"$float": "x"},
        {"$int": 1},
        {"$bytes": "?"},
        {"$array": {}},
        {"$ragged": [1, 2]},
        {"$map": [[[], 1]]},
        {"$new": 1},
    ],
)
def test_tags_that_lie_are_refused(tmp_path, value):
    file = native.decode(stored(tmp_path, description(fields={"d": {"layout": "data", "values": [value]}})))
    with pytest.raises(IncompleteDataError, match="bad"):
        file.read(0)


def test_a_foreign_safetensors_file_is_not_ours(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(encode_header([], {}))
    with pytest.raises(IncompleteDataError, match="rldbg did not write"):
        native.decode(path)
