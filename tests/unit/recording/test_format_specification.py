"""docs/recording.md specifies the format: a reader made from it alone finds what rldbg finds."""

import math
from pathlib import Path

import format_reader
import numpy as np
import pytest
import torch

import rldbg
from rldbg.core import Identity
from rldbg.recording import EncodedArray, Ragged

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
FORMATS = ("safetensors", "pt", "jsonl")


def _comparable(value):
    """Dtype, shape and values of arrays, as plain data in which NaN equals NaN."""
    if isinstance(value, torch.Tensor):
        exact = value.to(torch.float32) if value.dtype.itemsize < 4 and value.dtype.is_floating_point else value
        return str(value.dtype).removeprefix("torch."), list(value.shape), _comparable(exact.tolist())
    if isinstance(value, EncodedArray):
        return value.dtype, list(value.shape), _comparable(value.decode().tolist())
    if isinstance(value, np.ndarray):
        return value.dtype.name, list(value.shape), _comparable(value.tolist())
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | Ragged):
        return [_comparable(item) for item in value]
    if isinstance(value, complex):
        return _comparable([value.real, value.imag])
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _assert_same(root: Path) -> None:
    found, recording = format_reader.read(root), rldbg.open(root)
    assert found.keys() == {tuple(key) for key in recording.keys()}  # noqa: SIM118 - a method of Recording
    for record in recording.records():
        other = found[tuple(record.key)]
        assert other["samples"] == [tuple(sample) for sample in record.samples]
        assert _comparable(other["fields"]) == _comparable(dict(record.fields)), record.key


@pytest.mark.parametrize("form", FORMATS)
def test_golden_recordings_are_read_by_the_document(form):
    _assert_same(GOLDEN / form)


@pytest.mark.parametrize("form", FORMATS)
def test_a_recording_of_everything_is_read_by_the_document(tmp_path, form):
    recorder = rldbg.Recorder(tmp_path, identity=Identity(rank=1), format=form)
    samples = [("g/0", 0), ("ü~", 1)]
    odd = {"nan": math.nan, "inf": -math.inf, "big": 2**70, "a/b~": [1, {"x": None}]}
    recorder.record(
        "trajectory",
        step=0,
        samples=samples,
        tokens=[[1, 2, 3], [4]],
        loss_mask=[[0, 1, 1], [1]],
        logprobs=[[0.0, -0.5, math.nan], [-math.inf]],
        reward=[1.0, math.nan],
        extra_fields=[odd, {}],
    )
    for micro in range(2):
        wide = {"input_ids": torch.arange(8).reshape(2, 4)} if micro else {}
        log_probs = torch.full((2, 3 + micro), -0.25).to(torch.bfloat16)
        recorder.record("forward_data", step=0, micro=micro, samples=samples, log_probs=log_probs, **wide)
        recorder.record("loss", step=0, micro=micro, samples=samples, loss=0.5, metrics=odd, epoch=1)
    recorder.record(
        "mine",
        step=0,
        samples=samples,
        complex=np.array([1 + 2j, complex(math.nan, 1)]),
        number=np.array(3.5),
        eight=torch.tensor([[0.5, -2.0]] * 2).to(torch.float8_e4m3fn),
        rows=[[1.5], [2.5, 3.5]],
        nothing=torch.empty(2, 0),
        text="hi",
    )
    assert recorder.close()
    _assert_same(tmp_path)
