"""Damaged files of every format: read or refused, never anything else."""

import collections
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rldbg.core import SampleId
from rldbg.recording.formats import native
from rldbg.recording.formats.jsonl_file import dump_jsonl
from rldbg.recording.formats.nexrl_dict import to_dict
from rldbg.recording.formats.pt_writer import dump_pt
from rldbg.recording.formats.safetensors_file import encode_header
from rldbg.recording.records import EncodedArray, Ragged, Record, RecordKey

SCRIPT = Path(__file__).with_name("mutations.py")


def example_records() -> list[Record]:
    rng = np.random.default_rng(0)
    tokens = Ragged.from_rows([rng.integers(0, 150_000, n) for n in (5, 0, 40)], np.int64)
    mask = Ragged(np.ones(45, np.int8), tokens.offsets)
    logprobs = Ragged(np.where(np.arange(45) % 9, -rng.random(45), np.nan).astype(np.float32), tokens.offsets)
    samples = tuple(SampleId(f"g{i}", i) for i in range(3))
    low = EncodedArray(rng.integers(0, 2**15, (3, 4)).astype(np.uint16), "bfloat16")
    forward = {
        "log_probs": -rng.random((3, 4)).astype(np.float32),
        "entropy": low,
        "response_mask": np.ones((3, 4), bool),
    }
    return [
        Record(
            RecordKey("trajectory", 0),
            {"tokens": tokens, "loss_mask": mask, "reward": np.array([0.0, 1.0, np.inf]), "logprobs": logprobs},
            samples,
            ("a", "b", "c"),
        ),
        Record(
            RecordKey("datums", 2),
            {"input_tokens": tokens, "target_tokens": tokens, "logprobs": logprobs, "advantages": logprobs},
            samples,
        ),
        Record(RecordKey("forward_data", 1, 2, 3), forward, samples, coordinates={"dp": 1}, extra={"a": {1: b"x"}}),
        Record(RecordKey("loss", 1), {"loss": float("nan"), "metrics": {"a": [1, 2.5, None], "b": {"c": 1e300}}}),
        Record(RecordKey("param", 1), {"param_name": "w", "param": np.eye(3, dtype=np.float16), "norm": 1.0}),
    ]


class Sample:
    def __init__(self) -> None:
        self.tokens = list(range(50))
        self.weights = torch.arange(6).reshape(2, 3).t()


@pytest.fixture(scope="module")
def valid_files(tmp_path_factory) -> Path:
    """Small files of every format and of several writers; `KIND-` or `plain-` begins their names."""
    folder = tmp_path_factory.mktemp("mutations") / "valid"
    folder.mkdir()
    for record in example_records():
        name = record.key.kind
        dump_pt(to_dict(record), folder / f"{name}-ours.pt")
        torch.save(torch.load(folder / f"{name}-ours.pt"), folder / f"{name}-torch.pt")
        dump_jsonl(to_dict(record), folder / f"{name}-ours.jsonl")
        later = Record(record.key._replace(micro=record.key.micro + 1), record.fields, record.samples)
        joined = [Record(record.key, record.fields, record.samples), later]
        header, buffers = native.encode(joined)
        (folder / f"{name}-native.safetensors").write_bytes(header + b"".join(buffers))
    values = {
        "sample": Sample(),
        "arrays": [np.arange(6).reshape(2, 3), np.float32(2), np.array(["a", {"b": 1}], dtype=object)],
        "odd": collections.OrderedDict(a={1, 2}, b=frozenset({3}), c=1j, d=bytearray(b"x"), e=torch.float32),
        "tensors": [torch.ones(2, 3).bfloat16(), torch.zeros(2, dtype=torch.uint16), torch.nn.Parameter(torch.ones(1))],
    }
    torch.save(values, folder / "plain-values.pt")
    for protocol in (0, 2, 4, 5):
        plain = values | {"tensors": None, "sample": None, "odd": None}
        (folder / f"plain-{protocol}.pickle").write_bytes(pickle.dumps(plain, protocol))
    (folder / "plain-tensors.pickle").write_bytes(pickle.dumps([torch.ones(3), torch.arange(4).reshape(2, 2).t()], 4))
    (folder / "plain-foreign.safetensors").write_bytes(
        encode_header([("x", "float32", (2,), 8)], {"a": "b"}) + bytes(8)
    )
    return folder


def damage(folder: Path, seed: int, count: int, timeout_s: float) -> tuple[int, int]:
    """How many damaged files were read all the same, and how many refused."""
    result = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(seed), str(count)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert result.returncode == 0, f"exit {result.returncode}: {result.stderr[-3000:]}"
    were_read, were_refused = map(int, result.stdout.split())
    return were_read, were_refused


def test_damaged_files_are_read_or_refused(valid_files):
    were_read, were_refused = damage(valid_files, 0, 600, 120)
    assert were_read + were_refused == 600
    assert were_read > 30, "damage that never gets past the first check tests nothing"
    assert were_refused > 200


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_twenty_thousand_damaged_files(valid_files, part):
    seed = 1_000_000 + part * 2000
    assert sum(damage(valid_files, seed, 2000, 3000)) == 2000
