"""Whatever a trainer hands over is recorded as it was at that moment, in every format."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rldbg
from rldbg.core import SampleId
from rldbg.recording import EncodedArray, Ragged, Record, Recorder


def recorded(folder: Path, kind: str = "mine", format: str = "safetensors", **fields: Any) -> Record:
    with Recorder(folder / "dump", format=format) as recorder:
        recorder.record(kind, step=0, **fields)
    return next(iter(rldbg.open(folder / "dump").records()))


DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.complex64),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", ["safetensors", "pt"])
def test_tensors_of_every_dtype(tmp_path: Path, dtype: torch.dtype, format: str) -> None:
    tensor = torch.tensor([[0.0, 1.0, -0.5], [2.0, 3.0, 1.5]]).to(dtype)
    record = recorded(tmp_path, format=format, values=tensor)
    assert record.dtype("values") == str(tensor.dtype).removeprefix("torch.")
    exact = torch.complex64 if dtype.is_complex else torch.float64
    np.testing.assert_array_equal(record.array("values"), tensor.to(exact).numpy())


def test_the_caller_may_overwrite_at_once(tmp_path: Path) -> None:
    tensor, array, rows = torch.arange(300_000.0), np.arange(300_000), [[1.5, 2.5], [3.5]]
    with Recorder(tmp_path) as recorder:
        recorder.record("mine", step=0, tensor=tensor, array=array, rows=rows, metrics={"list": rows})
        tensor.fill_(-1)
        array[:] = -1
        rows[0][0] = -1
    record = next(iter(rldbg.open(tmp_path).records()))
    np.testing.assert_array_equal(record.array("tensor"), np.arange(300_000))
    np.testing.assert_array_equal(record.array("array"), np.arange(300_000))
    assert record.fields["rows"][0].tolist() == [1.5, 2.5]
    assert record.fields["metrics"] == {"list": [[1.5, 2.5], [3.5]]}


def test_views_gradients_and_odd_strides(tmp_path: Path) -> None:
    base = torch.arange(24.0, requires_grad=True).reshape(4, 6)
    record = recorded(
        tmp_path, view=base[1:3, 1:4], turned=base.T, every_other=base[:, ::2], empty=base[:0], number=base[0, 1]
    )
    np.testing.assert_array_equal(record.array("view"), base.detach().numpy()[1:3, 1:4])
    np.testing.assert_array_equal(record.array("turned"), base.detach().numpy().T)
    np.testing.assert_array_equal(record.array("every_other"), base.detach().numpy()[:, ::2])
    assert record.array("empty").shape == (0, 6)
    assert record.array("number") == 1.0


def test_lazy_conjugates_sparse_and_big_endian(tmp_path: Path) -> None:
    lazy = torch.tensor([1 + 2j, 3 - 1j]).conj()
    record = recorded(tmp_path, lazy=lazy, sparse=torch.eye(3).to_sparse(), swapped=np.arange(4, dtype=">i4"))
    np.testing.assert_array_equal(record.array("lazy"), np.array([1 - 2j, 3 + 1j], dtype=np.complex64))
    np.testing.assert_array_equal(record.array("sparse"), np.eye(3))
    np.testing.assert_array_equal(record.array("swapped"), np.arange(4))


def test_rows_as_tensors_arrays_and_ragged(tmp_path: Path) -> None:
    rows = [torch.tensor([1, 2, 3]), torch.tensor([4])]
    record = recorded(
        tmp_path,
        tensors=rows,
        arrays=[row.numpy() for row in rows],
        halves=[row.to(torch.bfloat16) for row in rows],
        ragged=Ragged.from_rows([[1, 2, 3], [4]]),
        numbers=[torch.tensor(0.5), torch.tensor(1.5)],
        experts=[np.zeros((2, 3)), np.ones((1, 3))],
        nested=torch.nested.nested_tensor(rows),
    )
    for name in ("tensors", "arrays", "ragged", "nested"):
        assert [row.tolist() for row in record.fields[name]] == [[1, 2, 3], [4]], name
    assert record.fields["halves"].lengths.tolist() == [3, 1]
    assert record.array("numbers").tolist() == [0.5, 1.5]
    assert record.fields["experts_shapes"] == [[2, 3], [1, 3]]
    assert record.fields["experts"].lengths.tolist() == [6, 3]


def test_bfloat16_given_as_bits(tmp_path: Path) -> None:
    record = recorded(tmp_path, values=EncodedArray(np.array([0x3F80, 0x4000], dtype=np.uint16), "bfloat16"))
    assert record.array("values").tolist() == [1.0, 2.0]


def test_data_of_any_kind_never_fails(tmp_path: Path) -> None:
    record = recorded(
        tmp_path,
        text="ünïcode",
        nothing=None,
        numbers={"a": np.float32(0.5), "b": torch.tensor(2), "c": torch.tensor([1.0, 2.0]), 3: math.inf},
        objects=[object, Path("x")],
        words=["a", "b"],
        holes=[[None, -0.5], [1.0]],
        deep=[[[1, 2], [3, 4]]],
    )
    assert record.fields["text"] == "ünïcode"
    assert record.fields["nothing"] is None
    assert record.fields["numbers"] == {"a": 0.5, "b": 2, "c": [1.0, 2.0], "3": math.inf}
    assert record.fields["words"] == ["a", "b"]
    assert record.fields["holes"] == [[None, -0.5], [1.0]]
    assert record.array("deep").shape == (1, 2, 2)


@pytest.mark.parametrize("format", ["safetensors", "pt", "jsonl"])
def test_nan_and_infinity_survive_every_format(tmp_path: Path, format: str) -> None:
    values = torch.tensor([[math.nan, math.inf], [-math.inf, -0.5]])
    record = recorded(
        tmp_path,
        "forward_data",
        format,
        samples=[("g", 0), ("g", 1)],
        log_probs=values,
        entropy=values,
        response_mask=torch.ones(2, 2, dtype=torch.int64),
        extra_info={"worst": math.nan, "best": math.inf},
    )
    np.testing.assert_array_equal(record.array("log_probs"), values.numpy())
    assert math.isnan(record.fields["extra_info"]["worst"])
    assert record.fields["extra_info"]["best"] == math.inf


@pytest.mark.parametrize("format", ["safetensors", "pt", "jsonl"])
def test_a_loss_is_a_number_however_it_came(tmp_path: Path, format: str) -> None:
    with Recorder(tmp_path, format=format) as recorder:
        for micro, loss in enumerate(
            [torch.tensor(0.1, dtype=torch.bfloat16), torch.tensor([0.5]), 0.25, np.float32(2)]
        ):
            recorder.record("loss", step=0, micro=micro, samples=[("g", 0)], loss=loss)
    losses = sorted((record.key.micro, record.fields["loss"]) for record in rldbg.open(tmp_path).records())
    assert losses == [(0, float(torch.tensor(0.1, dtype=torch.bfloat16))), (1, 0.5), (2, 0.25), (3, 2.0)]


TRAJECTORIES = [
    {"tokens": [5, 6, 700], "loss_mask": [0, 0, 1], "reward": 1.0, "is_val": False, "logprobs": [0, 0, -0.5]}
    | {"extra_fields": {"group_id": "g0", "run_id": 0, "score": 0.5}},
    {"tokens": [5, 6, 8, 9], "loss_mask": [0, 0, 1, 1], "reward": 0.0, "is_val": False, "logprobs": [0, 0, -1, -2]}
    | {"extra_fields": {"group_id": "g0", "run_id": 1, "score": 0.25}},
]


@pytest.mark.parametrize("format", ["safetensors", "pt", "jsonl"])
def test_trajectories_name_their_samples_themselves(tmp_path: Path, format: str) -> None:
    record = recorded(tmp_path, "trajectory", format, trajectories=TRAJECTORIES)
    assert record.samples == (SampleId("g0", 0), SampleId("g0", 1))
    assert [row.tolist() for row in record.rows("tokens")] == [[5, 6, 700], [5, 6, 8, 9]]
    assert [row.tolist() for row in record.rows("logprobs")] == [[0, 0, -0.5], [0, 0, -1, -2]]
    assert record.prompt_hashes[0] == record.prompt_hashes[1] == rldbg.core.prompt_hash(np.array([5, 6]).tobytes())
    assert [extra["score"] for extra in record.fields["extra_fields"]] == [0.5, 0.25]


def test_trajectories_as_columns(tmp_path: Path) -> None:
    columns = {name: [item[name] for item in TRAJECTORIES] for name in ("tokens", "loss_mask", "reward")}
    record = recorded(tmp_path, "trajectory", group_id=["a", "a"], run_id=torch.tensor([3, 4]), **columns)
    assert record.samples == (SampleId("a", 3), SampleId("a", 4))


def test_the_samples_of_a_record_are_those_given_with_it_though_the_list_is_used_again(tmp_path: Path) -> None:
    pairs: list[Any] = [("g", 0), ("g", 1)]
    lists = [["g", 0], ["g", 1]]
    with Recorder(tmp_path) as recorder:
        recorder.record("mine", step=0, samples=pairs, x=np.zeros(2))
        recorder.record("mine", step=1, samples=pairs[::-1], x=np.zeros(2))
        pairs[0] = ("h", 7)
        recorder.record("mine", step=2, samples=pairs, x=np.zeros(2))
        recorder.record("mine", step=3, samples=lists, x=np.zeros(2))
        lists[0][1] = 5
        recorder.record("mine", step=4, samples=lists, x=np.zeros(2))
        for step in range(5, 205):  # more than are remembered, each made of new objects
            recorder.record("mine", step=step, samples=[(str(step), 0)], x=np.zeros(1))
    names = {record.key.step: [str(sample) for sample in record.samples] for record in rldbg.open(tmp_path).records()}
    assert [names[step] for step in range(5)] == [
        ["g/0", "g/1"],
        ["g/1", "g/0"],
        ["h/7", "g/1"],
        ["g/0", "g/1"],
        ["g/5", "g/1"],
    ]
    assert all(names[step] == [f"{step}/0"] for step in range(5, 205))


@pytest.mark.parametrize("format", ["safetensors", "pt", "jsonl"])
def test_half_a_surrogate_pair_and_bytes_come_back(tmp_path: Path, format: str) -> None:
    fields = {"text": "half \ud800 ü", "raw": b"\x00\xff", "metrics": {"name": "\udfff", "blob": bytearray(b"ab")}}
    record = recorded(tmp_path, format=format, **fields)
    assert record.fields["text"] == "half \ud800 ü"
    assert record.fields["raw"] == b"\x00\xff"
    assert record.fields["metrics"] == {"name": "\udfff", "blob": b"ab"}


def test_what_is_no_sample_is_said_as_that(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.record("mine", step=0, samples=[("g",)], x=np.zeros(1))
    assert "not a sample id: ('g',) (expected a pair such as ('g0', 3), or 'g0/3')" in caplog.text


@pytest.mark.parametrize("step", [None, 2.5, "3", object(), torch.tensor(2.5)])
def test_a_step_that_is_no_number_harms_nobody(tmp_path: Path, step: Any, caplog: pytest.LogCaptureFixture) -> None:
    with Recorder(tmp_path, parameter_patterns=["."]) as recorder:
        recorder.record("mine", step=step, x=np.zeros(1))
        recorder.record_parameters(step, torch.nn.Linear(1, 1))
        recorder.end_step(step)
        recorder.pin(step)
        recorder.record("mine", step=np.int64(1), micro=torch.tensor(0), x=np.zeros(1))
        assert recorder.flush(timeout_s=60)
        assert recorder.stopped is None
    assert [record.key.step for record in rldbg.open(tmp_path).records()] == [1]
    assert "invalid step" in caplog.text
