"""Every shape in which trainers hold rows is recorded, and comes back as the same rows."""

import warnings

import numpy as np
import pytest
import torch

import rldbg
from rldbg.recording import EncodedArray, Ragged, Record

LENGTHS = (3, 1, 5, 2)
SAMPLES = [(f"g{row // 2}", row % 2) for row in range(len(LENGTHS))]
ROWS = [np.arange(length, dtype=np.float32) + 10 * row for row, length in enumerate(LENGTHS)]
WIDTH = max(LENGTHS)


def padded(left: bool) -> np.ndarray:
    rows = [np.zeros(WIDTH - len(row), np.float32) for row in ROWS]
    pairs = zip(rows, ROWS, strict=True)
    return np.stack([np.concatenate([fill, row] if left else [row, fill]) for fill, row in pairs])


def narrowed() -> torch.Tensor:
    """A jagged tensor with holes: its rows are windows of a padded one."""
    starts = torch.zeros(len(LENGTHS), dtype=torch.int64)
    return torch.nested.narrow(
        torch.from_numpy(padded(left=False)), 1, starts, torch.tensor(LENGTHS), layout=torch.jagged
    )


TENSORS = [torch.from_numpy(row) for row in ROWS]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch says that nested tensors are a prototype
    NESTED = torch.nested.nested_tensor(TENSORS)
SHAPES = {
    "lists": [row.tolist() for row in ROWS],
    "tuples": tuple(tuple(row.tolist()) for row in ROWS),
    "arrays": ROWS,
    "tensors": TENSORS,
    "bfloat16 tensors": [tensor.bfloat16() for tensor in TENSORS],
    "ragged": Ragged.from_rows(ROWS),
    "ragged bfloat16": Ragged(
        EncodedArray((np.concatenate(ROWS).view(np.uint32) >> 16).astype(np.uint16), "bfloat16"),  # type: ignore[arg-type]
        np.concatenate([[0], np.cumsum(LENGTHS)]),
    ),
    "jagged": torch.nested.as_nested_tensor(TENSORS, layout=torch.jagged),
    "jagged with holes": narrowed(),
    "jagged bfloat16": torch.nested.as_nested_tensor([tensor.bfloat16() for tensor in TENSORS], layout=torch.jagged),
    "jagged with gradient": torch.nested.as_nested_tensor(TENSORS, layout=torch.jagged).requires_grad_(),
    "nested": NESTED,
    "padded right": padded(left=False),
    "padded left": torch.from_numpy(padded(left=True)),
    "padded bfloat16": torch.from_numpy(padded(left=False)).bfloat16(),
    "padded view": torch.from_numpy(padded(left=False)).t().contiguous().t(),
    "padded lists": padded(left=False).tolist(),
}
SOME = ["g0/1", "g1/0"]
CASES = [("safetensors", None), ("safetensors", SOME), ("pt", None), ("jsonl", SOME)]


def rows_of(record: Record, name: str, left: bool) -> list[list[float]]:
    value = record.fields[name]
    chosen = [SAMPLES.index(tuple(sample)) for sample in record.samples]
    rows = [np.asarray(row, np.float64) for row in (value if isinstance(value, Ragged) else np.asarray(value))]
    lengths = [LENGTHS[row] for row in chosen]
    return [(row[len(row) - n :] if left else row[:n]).tolist() for row, n in zip(rows, lengths, strict=True)]


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize(("format", "kept"), CASES)
def test_the_same_rows_come_back(tmp_path, shape, format, kept):
    expected = [
        row.tolist()
        for row, sample in zip(ROWS, SAMPLES, strict=True)
        if not kept or "/".join(map(str, sample)) in kept
    ]
    with rldbg.Recorder(tmp_path, format=format, samples=kept) as recorder:
        recorder.record(
            "trajectory", step=0, samples=SAMPLES, tokens=SHAPES[shape], loss_mask=SHAPES[shape], reward=[0.0] * 4
        )
        recorder.record("mine", step=0, samples=SAMPLES, x=SHAPES[shape])
    recording = rldbg.open(tmp_path)
    assert [finding for finding in recording.verify() if finding.severity != "info"] == []
    for kind, name in (("trajectory", "tokens"), ("trajectory", "loss_mask"), ("mine", "x")):
        (record,) = recording.records(kind)
        assert rows_of(record, name, left=shape == "padded left") == expected
