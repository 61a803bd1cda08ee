"""Parameters and gradients: every match, whole or as a hash, sharded or not, and never a made-up statistic."""

import math
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import rldbg
from rldbg.recording import Record, Recorder
from rldbg.recording.recorder.parameters import modules_and_parameters


def model() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    net(torch.ones(2, 4)).sum().backward()
    return net


def parameters(folder: Path) -> dict[str, Record]:
    return {record.fields["param_name"]: record for record in rldbg.open(folder).records()}


def test_every_match_is_recorded_with_its_statistics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = model()
    with Recorder(tmp_path, parameter_patterns=[r"weight$", r"1\.bias"]) as recorder:
        recorder.record_parameters(0, net)
        recorder.record_gradients(0, net)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*.safetensors")) == [
        "gradient/step_000000_rank0.safetensors",
        "param/step_000000_rank0.safetensors",
    ]
    found = {(record.key.kind, record.fields["param_name"]): record for record in rldbg.open(tmp_path).records()}
    assert {name for _, name in found} == {"0.weight", "1.weight", "1.bias"}
    assert not caplog.messages
    weight = net[0].weight.detach()
    record = found["param", "0.weight"]
    np.testing.assert_array_equal(record.array("param"), weight.numpy())
    assert record.fields["shape"] == [3, 4]
    assert record.fields["dtype"] == "torch.float32"
    assert record.fields["norm"] == pytest.approx(weight.norm().item())
    assert record.fields["mean"] == pytest.approx(weight.mean().item())
    assert record.fields["std"] == pytest.approx(weight.std().item())
    np.testing.assert_array_equal(found["gradient", "1.weight"].array("gradient"), net[1].weight.grad.numpy())


@pytest.mark.parametrize("format", ["pt", "jsonl"])
def test_the_documented_formats_have_a_file_a_parameter(tmp_path: Path, format: str) -> None:
    with Recorder(tmp_path, format=format, parameter_patterns=["weight"]) as recorder:
        recorder.record_parameters(0, model())
    assert sorted(path.name for path in (tmp_path / "param").iterdir()) == [
        f"step_000000_rank0.{format}",
        f"step_000000_rank0_part1.{format}",
    ]
    assert set(parameters(tmp_path)) == {"0.weight", "1.weight"}


def test_hash_mode_keeps_hash_and_statistics_only(tmp_path: Path) -> None:
    net = model().to(torch.bfloat16)
    with Recorder(tmp_path, parameter_patterns=["0.weight"], parameter_mode="hash") as recorder:
        recorder.record_parameters(0, net)
    fields = parameters(tmp_path)["0.weight"].fields
    assert "param" not in fields
    assert (
        fields["hash"]
        == blake2b(net[0].weight.detach().view(torch.int16).numpy().tobytes(), digest_size=16).hexdigest()
    )
    assert fields["norm"] == pytest.approx(net[0].weight.float().norm().item(), rel=1e-6)


def test_empty_shards_and_single_values_have_no_invented_statistics(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.empty = nn.Parameter(torch.zeros(0))
            self.single = nn.Parameter(torch.tensor([2.0]))
            self.spoilt = nn.Parameter(torch.tensor([1.0, math.nan]))

    with Recorder(tmp_path, parameter_patterns=["."]) as recorder:
        recorder.record_parameters(0, Odd())
    found = {name: record.fields for name, record in parameters(tmp_path).items()}
    assert (found["empty"]["norm"], found["empty"]["mean"], found["empty"]["std"]) == (0.0, None, None)
    assert (found["single"]["norm"], found["single"]["mean"], found["single"]["std"]) == (2.0, 2.0, None)
    assert math.isnan(found["spoilt"]["mean"]), "a NaN that is there must be seen"


def test_parameters_of_several_dtypes(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(torch.bfloat16), nn.Linear(2, 2))
    with Recorder(tmp_path, parameter_patterns=["weight"]) as recorder:
        recorder.record_parameters(0, net)
    found = parameters(tmp_path)
    assert {name: record.dtype("param") for name, record in found.items()} == {
        "0.weight": "float32",
        "1.weight": "bfloat16",
        "2.weight": "float32",
    }
    assert len(list((tmp_path / "param").iterdir())) == 2


def test_a_pattern_without_a_match_names_what_there_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Recorder(tmp_path, parameter_patterns=["q_proj"]) as recorder:
        recorder.record_parameters(0, model())
        recorder.record_parameters(1, model())
    assert caplog.text.count("no parameter matches q_proj") == 1
    assert "0.weight" in caplog.text


def test_nothing_is_recorded_without_a_pattern(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.record_parameters(0, model())
    assert not (tmp_path / "param").exists()


def test_flattened_parameters_are_said_to_be_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class FullyShardedDataParallel(nn.Module):
        _use_orig_params = False

        def __init__(self) -> None:
            super().__init__()
            self._flat_param = nn.Parameter(torch.zeros(4))

    with Recorder(tmp_path, parameter_patterns=["q_proj"]) as recorder:
        recorder.record_parameters(0, FullyShardedDataParallel())
    assert "use_orig_params=True" in caplog.text


def test_a_model_of_several_dtypes_and_sizes_is_recorded_whole(tmp_path: Path) -> None:
    net = nn.ModuleDict(
        {
            "large": nn.Linear(1500, 1500),  # more than is handed over in one piece
            "brain": nn.Linear(3, 2).to(torch.bfloat16),
            "small": nn.Linear(2, 2),
            "none": nn.Linear(2, 2, device="meta"),
        }
    )
    with Recorder(tmp_path, parameter_patterns=["."]) as recorder:
        recorder.record_parameters(0, net)
        recorder.record_parameters(1, net)
    recording = rldbg.open(tmp_path)
    names = {name for name, _ in net.named_parameters() if not name.startswith("none")}
    for step in (0, 1):
        found = {record.fields["param_name"]: record.array("param") for record in recording.records(step=step)}
        assert found.keys() == names
        assert all((found[name] == net.get_parameter(name).detach().float().numpy()).all() for name in names)
    # What could not be copied is said by the journal, and is all that is missing.
    assert [(finding.id, finding.where[-7:]) for finding in recording.verify()] == [
        *[("dropped", "micro 6"), ("dropped", "micro 7")] * 2
    ]


def test_parameters_are_copied_before_the_call_returns_whatever_their_memory_looks_like(tmp_path: Path) -> None:
    net = nn.ParameterDict(
        {
            "transposed": nn.Parameter(torch.arange(6.0).reshape(2, 3).t()),
            "large": nn.Parameter(torch.randn(300, 300)),
            "cut": nn.Parameter(torch.arange(10.0)[::2]),
            "short": nn.Parameter(torch.randn(5).bfloat16()),
            "negated": nn.Parameter(torch.complex(torch.ones(2), torch.arange(2.0)).conj().imag, requires_grad=False),
            "none": nn.Parameter(torch.empty(0)),
        }
    )
    expected = {name: value.detach().clone().float().numpy() for name, value in net.items()}
    with Recorder(tmp_path, parameter_patterns=["."]) as recorder:
        recorder.record_parameters(0, net)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.fill_(-7)
    for name, record in parameters(tmp_path).items():
        np.testing.assert_array_equal(record.array("param"), expected[name], err_msg=name)
    assert parameters(tmp_path).keys() == expected.keys()


def test_a_model_is_walked_as_torch_walks_it() -> None:
    shared = nn.Linear(2, 2)
    net = nn.Sequential(shared, nn.ModuleDict({"again": shared, "deep": nn.Sequential(nn.Linear(2, 3, bias=False))}))
    net.register_module("absent", None)
    net.tied = nn.Linear(2, 2, bias=False)
    net.tied.weight = shared.weight
    net.own = nn.Parameter(torch.ones(1))
    modules, named = modules_and_parameters(net)
    assert list(modules) == list(net.modules())
    assert [(name, id(value)) for name, value in named] == [(n, id(p)) for n, p in net.named_parameters()]


def test_statistics_of_a_large_tensor_are_those_of_float64(tmp_path: Path) -> None:
    model = torch.nn.Linear(300, 700, bias=False)
    with torch.no_grad():
        model.weight += 100.0
    with Recorder(tmp_path, parameter_patterns=["."]) as recorder:
        recorder.record_parameters(0, model)
    (record,) = rldbg.open(tmp_path).records(kind="param")
    exact = model.weight.detach().double()
    assert record.fields["norm"] == pytest.approx(exact.norm().item(), rel=1e-12)
    assert record.fields["std"] == pytest.approx(exact.std().item(), rel=1e-9)
