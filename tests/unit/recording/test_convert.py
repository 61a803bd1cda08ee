"""A recording in another format holds the same records, verifies clean, and never replaces anything unasked."""

import json
from pathlib import Path

import numpy as np
import peer_dumps
import pytest
import torch
from same_records import assert_same_record

from rldbg.core import IncompleteDataError, SampleId, UsageError
from rldbg.recording import EncodedArray, Ragged, Record, RecordKey
from rldbg.recording import open as open_recording
from rldbg.recording.conversion import TARGETS, convert
from rldbg.recording.formats import native
from rldbg.recording.formats.jsonl_file import dump_jsonl, load_jsonl
from rldbg.recording.formats.nexrl_dict import from_dict, to_dict
from rldbg.recording.formats.pt_reader import load_pt
from rldbg.recording.formats.pt_writer import dump_pt
from rldbg.recording.layouts.table_files import read_table_file, write_table_file


def _assert_equal_and_clean(source, out):
    copy = open_recording(out)
    assert copy.layout.name == "rldbg"
    assert copy.keys() == source.keys()
    for key in source.keys():  # noqa: SIM118 - a method of Recording, not of a dict
        assert_same_record(source.read(key), copy.read(key))
    assert [finding for finding in copy.verify() if finding.severity != "info"] == []


@pytest.mark.parametrize("target", TARGETS)
def test_nexrl_converts_without_loss(tmp_path, target):
    peer_dumps.nexrl(tmp_path / "dump", steps=(0, 2), ranks=2, micros=2, dtype=torch.bfloat16)
    source = open_recording(tmp_path / "dump")
    result = convert(source, tmp_path / "out", target)
    assert result.records == len(source.keys())
    assert result.findings == []
    _assert_equal_and_clean(source, tmp_path / "out")


@pytest.mark.parametrize("target", TARGETS)
def test_every_peer_converts_without_loss(tmp_path, target):
    slime = tmp_path / "slime"
    peer_dumps.slime_rollout(slime, 0, [peer_dumps.slime_sample(index, reward=None) for index in range(4)])
    peer_dumps.slime_train(slime, 0, 4, dtype=torch.float16, entropy=float("nan"))
    peer_dumps.sglang(tmp_path / "sglang", steps=2)
    peer_dumps.verl_batch(tmp_path / "verl", 1)
    peer_dumps.lines(
        tmp_path / "prime" / "step_1" / "rank_0.jsonl", [peer_dumps.prime_row(1, 0, m, m) for m in range(3)]
    )
    peer_dumps.lines(tmp_path / "nemo" / "train_data_step1.jsonl", [peer_dumps.nemo_row(0), peer_dumps.nemo_row(1)])
    for name in ("slime", "sglang", "verl", "prime", "nemo"):
        source = open_recording(tmp_path / name)
        assert convert(source, tmp_path / f"{name}-out", target).findings == []
        _assert_equal_and_clean(source, tmp_path / f"{name}-out")


def _odd_record() -> Record:
    nan = np.array([np.nan, np.inf, -np.inf, 0.5])
    return Record(
        RecordKey("mine", 3, 1, 2, 1, 4),
        {
            "padded": nan.reshape(2, 2),
            "cube": np.arange(12, dtype=np.int16).reshape(2, 3, 2),
            "flags": np.array([True, False]),
            "unsigned": np.array([2**64 - 1, 0], np.uint64),
            "complex": np.array([1 + 2j, complex(np.nan, 1)], np.complex64),
            "wide": np.array([[1 + 2j, 3], [4, 5]], np.complex128),
            "weights": EncodedArray(np.array([0x3F80, 0x7FC0, 0xFF80], np.uint16), "bfloat16"),
            "small": EncodedArray(np.array([[1, 127], [254, 0]], np.uint8), "float8_e4m3fn"),
            "rows": Ragged.from_rows([[1.5, np.nan], []], np.float16),
            "odd rows": Ragged.from_rows([[1], [2, 3], [4]], np.int32),
            "brain rows": Ragged(EncodedArray(np.array([0x3F80, 0x4000], np.uint16), "bfloat16"), np.array([0, 2, 2])),
            "scalar": np.float64(np.nan),
            "nothing": np.empty((2, 0), np.float32),
            "text": "ä\n\x00",
            "data": {"deep": [{"x": None}], "big": 2**70, "inf": float("-inf")},
        },
        (SampleId("a/b", 0), SampleId("ü", -1)),
        ("h0", "h1"),
        "policy",
        {"dp": 1, "tp": 0},
        9,
        {"more": np.arange(3, dtype=np.uint8), "ragged": Ragged.from_rows([[1], [2, 3]], np.int64)},
    )


def _data_with_types() -> dict:
    return {
        "array": np.arange(3, dtype=np.int8),
        "number": np.array(2.5, np.float32),
        "not finite": np.array([[np.nan, np.inf]], np.float16),
        "brain": EncodedArray(np.array([0x3F80, 0x7FC0], np.uint16), "bfloat16"),
        "complex": np.array([1 + 2j, 3]),
        "rows": Ragged.from_rows([[1], [], [2, 3]], np.int32),
        "bytes": b"\xff\x00",
        "by number": {1: "one", 2: np.ones(2)},
        "a/b~c": [{"deep": np.zeros((0, 3), np.int16)}],
        "long list": [0.5] * 50,
        "lists": [[1, 2]] * 40,
    }


@pytest.mark.parametrize("target", TARGETS)
def test_arrays_inside_mappings_keep_their_type(tmp_path, target):
    folder = tmp_path / "dump"
    trajectory = peer_dumps.slime_sample(0, metadata=_data_with_types(), reward=torch.tensor(0.5))
    peer_dumps.slime_rollout(folder, 0, [{name: _torch(value) for name, value in trajectory.items()}])
    source = open_recording(folder)
    assert convert(source, tmp_path / "out", target).findings == []
    _assert_equal_and_clean(source, tmp_path / "out")


def _torch(value: object) -> object:
    """What torch.save writes: lists, numbers and arrays as they are, of what only we have the plain parts."""
    if isinstance(value, dict):
        return {key: _torch(item) for key, item in value.items()}
    if isinstance(value, EncodedArray):
        return torch.tensor(value.decode()).to(torch.bfloat16)
    return [np.asarray(row) for row in value] if isinstance(value, Ragged) else value


@pytest.mark.parametrize("kind", ["trajectory", "loss", "mine"])
@pytest.mark.parametrize("target", TARGETS)
def test_data_keeps_the_type_of_every_value(tmp_path, target, kind):
    data = _data_with_types()
    tokens = Ragged.from_rows([[1, 2]], np.int64)
    fields = {
        "trajectory": {"tokens": tokens, "loss_mask": tokens, "reward": np.ones(1), "extra_fields": [data]},
        "loss": {"loss": 0.5, "metrics": data, "extra_info": {"deeper": data}},
        "mine": {"value": data, "raw": b"raw", "number": np.array(3, np.int16)},
    }[kind]
    record = Record(RecordKey(kind, 0), fields, (SampleId("g", 0),), extra={"more": data})
    if target == "parquet":
        write_table_file(record, tmp_path / "x.parquet")
        again = read_table_file(tmp_path / "x.parquet").read()
    elif target == "safetensors":
        header, buffers = native.encode([record])
        (tmp_path / "x.safetensors").write_bytes(b"".join([header, *buffers]))
        again = native.decode(tmp_path / "x.safetensors").read(0)
    elif target == "nexrl-pt":
        dump_pt(to_dict(record), tmp_path / "x.pt")
        again = from_dict(kind, load_pt(tmp_path / "x.pt", arrays=True))
    else:
        dump_jsonl(to_dict(record), tmp_path / "x.jsonl")
        again = from_dict(kind, load_jsonl(tmp_path / "x.jsonl"))
    assert_same_record(record, again)


def test_parquet_file_holds_every_type(tmp_path):
    write_table_file(_odd_record(), tmp_path / "x.parquet")
    assert_same_record(read_table_file(tmp_path / "x.parquet").read(), _odd_record())


def test_parquet_is_a_table_that_other_tools_read(tmp_path):
    import pyarrow.parquet

    peer_dumps.slime_rollout(tmp_path / "dump", 0, [peer_dumps.slime_sample(index) for index in range(3)])
    convert(open_recording(tmp_path / "dump"), tmp_path / "out", "parquet")
    table = pyarrow.parquet.read_table(tmp_path / "out" / "trajectory" / "step_000000.parquet")
    assert table.column("reward").to_pylist() == [0.0, 1.0, 0.0]
    assert table.column("tokens").to_pylist()[1] == [100, 101, 201, 201, 202]
    assert table.column("sample_group").to_pylist() == ["0", "0", "1"]


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: raw[: len(raw) // 2], lambda raw: b"PAR1" * 9])
def test_damaged_parquet_is_an_error_that_names_the_file(tmp_path, damage):
    path = tmp_path / "x.parquet"
    write_table_file(_odd_record(), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(IncompleteDataError, match=r"x\.parquet"):
        read_table_file(path).read()


def test_a_result_is_not_overwritten_unless_asked(tmp_path):
    peer_dumps.nexrl(tmp_path / "dump", ranks=1, micros=1)
    source = open_recording(tmp_path / "dump")
    convert(source, tmp_path / "out", "safetensors")
    with pytest.raises(UsageError) as error:
        convert(source, tmp_path / "out", "nexrl-pt")
    assert "--overwrite" in error.value.hint
    convert(source, tmp_path / "out", "nexrl-pt", kind="loss", overwrite=True)
    assert open_recording(tmp_path / "out").kinds() == ("loss",)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump", "out"], "no working folder is left"


def test_a_folder_that_is_no_recording_is_never_replaced(tmp_path):
    peer_dumps.nexrl(tmp_path / "dump", ranks=1, micros=1)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("...")
    with pytest.raises(UsageError, match="not a recording"):
        convert(open_recording(tmp_path / "dump"), tmp_path / "thesis", "safetensors", overwrite=True)
    with pytest.raises(UsageError, match="in each other"):
        convert(open_recording(tmp_path / "dump"), tmp_path / "dump" / "copy", "safetensors")
    assert (tmp_path / "thesis" / "chapter1.tex").exists()


def test_what_cannot_be_read_is_said_and_the_rest_is_converted(tmp_path):
    peer_dumps.nexrl(tmp_path / "dump", ranks=2, micros=1)
    (tmp_path / "dump" / "loss" / "step_000000_rank1_micro0.pt").write_bytes(b"")
    result = convert(open_recording(tmp_path / "dump"), tmp_path / "out", "safetensors")
    assert [(finding.id, finding.where) for finding in result.findings] == [
        ("not-carried", "loss step 0 rank 1 micro 0")
    ]
    assert open_recording(tmp_path / "out").ranks("loss") == (0,)
    assert json.dumps(result.to_dict())


@pytest.mark.parametrize("out", ["s3://bucket/recording", "memory://x", Path("https://host/recording")])
def test_a_conversion_goes_to_a_folder_never_to_a_url(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    peer_dumps.nexrl(tmp_path / "dump", ranks=1, micros=1)
    with pytest.raises(UsageError, match="written to a folder"):
        convert(open_recording(tmp_path / "dump"), out, "safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]


def test_a_link_to_a_recording_stays_a_link_when_that_is_replaced(tmp_path):
    peer_dumps.nexrl(tmp_path / "dump", ranks=1, micros=1)
    source = open_recording(tmp_path / "dump")
    convert(source, tmp_path / "first", "safetensors")
    (tmp_path / "latest").symlink_to(tmp_path / "first")
    convert(source, tmp_path / "latest", "nexrl-jsonl", kind="loss", overwrite=True)
    assert (tmp_path / "latest").is_symlink()
    assert open_recording(tmp_path / "first").kinds() == ("loss",)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump", "first", "latest"]
