"""CUDA tensors: snapshots are right whatever the caller's stream does next. Needs a GPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

import rldbg
from rldbg.recording import Recorder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


@pytest.mark.parametrize("device_buffer_bytes", [2**30, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_the_caller_may_overwrite_at_once(tmp_path: Path, dtype: torch.dtype, device_buffer_bytes: int) -> None:
    tensor = (torch.rand(512, 1024, device="cuda") * 4).to(dtype)
    expected = tensor.double().cpu().numpy()
    with Recorder(tmp_path, device_buffer_bytes=device_buffer_bytes) as recorder:
        recorder.record("mine", step=0, tensor=tensor, turned=tensor.T, metrics={"first": tensor[0, 0]})
        tensor.zero_()
    record = next(iter(rldbg.open(tmp_path).records()))
    np.testing.assert_array_equal(record.array("tensor"), expected)
    np.testing.assert_array_equal(record.array("turned"), expected.T)
    assert record.fields["metrics"]["first"] == expected[0, 0]


def test_more_than_the_device_buffer_goes_straight_to_the_host(tmp_path: Path) -> None:
    tensors = [torch.full((2**20,), number, device="cuda") for number in range(20)]
    with Recorder(tmp_path, device_buffer_bytes=10 * 2**20, buffer_bytes=64 * 2**20) as recorder:
        for micro, tensor in enumerate(tensors):
            recorder.record("mine", step=0, micro=micro, x=tensor)
            tensor.fill_(-1)
    found = {record.key.micro: record.array("x") for record in rldbg.open(tmp_path).records()}
    assert len(found) == 20
    assert all((values == micro).all() for micro, values in found.items())


def test_ragged_rows_and_numbers_on_the_device(tmp_path: Path) -> None:
    rows = [torch.arange(length, device="cuda") for length in (3, 1, 5)]
    with Recorder(tmp_path) as recorder:
        recorder.record("loss", step=0, micro=0, samples=[("g", 0)], loss=torch.tensor(0.5, device="cuda"), rows=rows)
    record = next(iter(rldbg.open(tmp_path).records()))
    assert record.fields["loss"] == 0.5
    assert [row.tolist() for row in record.fields["rows"]] == [[0, 1, 2], [0], [0, 1, 2, 3, 4]]


def test_nothing_is_recorded_while_a_graph_is_captured(tmp_path: Path) -> None:
    tensor = torch.ones(8, device="cuda")
    with Recorder(tmp_path) as recorder:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = tensor * 2
            recorder.record("mine", step=0, x=doubled)
        graph.replay()
        recorder.record("mine", step=1, x=doubled)
        assert recorder.stopped is None
    assert [record.key.step for record in rldbg.open(tmp_path).records()] == [1]


def test_a_models_parameters_come_whole_though_training_goes_on(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict(
        {
            "brain": torch.nn.Linear(512, 512, dtype=torch.bfloat16, device="cuda"),
            "large": torch.nn.Linear(2048, 2048, device="cuda"),  # more than is handed over in one piece
            "host": torch.nn.Linear(64, 64),
        }
    )
    expected = []
    with Recorder(tmp_path, parameter_patterns=["."]) as recorder:
        for step in range(3):
            expected.append(
                {name: value.detach().float().cpu().numpy().copy() for name, value in model.named_parameters()}
            )
            recorder.record_parameters(step, model)
            with torch.no_grad():
                for value in model.parameters():
                    value.add_(1)
    recording = rldbg.open(tmp_path)
    assert recording.verify() == []
    for step, values in enumerate(expected):
        found = {record.fields["param_name"]: record.array("param") for record in recording.records(step=step)}
        assert found.keys() == values.keys()
        assert all((found[name] == values[name]).all() for name in values)


def test_tensors_of_all_widths_and_none_travel_together(tmp_path: Path) -> None:
    fields = {
        "nothing": torch.empty(0, 3, device="cuda"),
        "flags": torch.tensor([True, False, True], device="cuda"),
        "brain": torch.randn(5, device="cuda").to(torch.bfloat16),
        "tokens": torch.arange(7, device="cuda"),
        "number": torch.tensor(0.25, device="cuda"),
        "learned": torch.randn(3, 2, device="cuda", requires_grad=True),
        "spread": torch.tensor([1.5], device="cuda").expand(7),
        "stepped": torch.arange(8, device="cuda")[::2],
    }
    expected = {name: value.detach().double().cpu().numpy() for name, value in fields.items()}
    with Recorder(tmp_path) as recorder, torch.autocast("cuda", torch.bfloat16):
        recorder.record("mine", step=0, **fields)
        with torch.no_grad():
            for name in fields.keys() - {"spread"}:  # whose values share one place
                fields[name].zero_()
    record = next(iter(rldbg.open(tmp_path).records()))
    for name, values in expected.items():
        np.testing.assert_array_equal(record.array(name), values)
