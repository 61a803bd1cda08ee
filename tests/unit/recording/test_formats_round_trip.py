"""Any record through every format and back: equal bit for bit, with NaN and Inf where they were."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rldbg.core import SampleId
from rldbg.recording.formats import native
from rldbg.recording.formats.jsonl_file import dump_jsonl, load_jsonl
from rldbg.recording.formats.nexrl_dict import from_dict, to_dict
from rldbg.recording.formats.pt_reader import load_pt
from rldbg.recording.formats.pt_writer import dump_pt
from rldbg.recording.records import ENCODED_DTYPES, EncodedArray, Ragged, Record, RecordKey

NUMPY_DTYPES = ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOAT_DTYPES = ("float16", "float32", "float64", "complex64", "complex128")
# Old releases of torch have fewer.
DTYPES = (*NUMPY_DTYPES, *FLOAT_DTYPES, *(name for name in ENCODED_DTYPES if hasattr(torch, name)))
ROWS_FIELDS = {
    "trajectory": ("tokens", "loss_mask"),
    "prepared_trajectories": ("tokens", "loss_mask"),
    "datums": ("input_tokens", "target_tokens", "logprobs", "advantages"),
}
MATRIX_FIELDS = {
    "old_log_probs": ("old_log_probs",),
    "forward_data": ("log_probs", "entropy", "response_mask", "input_ids"),
    "is_loss_debug": ("log_probs", "old_log_probs", "advantages", "prob_ratio"),
    "batch_inputs": ("input_ids", "attention_mask"),
    "param": ("param",),
    "my_own_kind": ("anything", "step"),
}
SPECIAL = (0.0, -0.0, 1.0, -1.5, math.nan, math.inf, -math.inf, 2.0**-24)


def array_of(draw, dtype: str, shape: tuple[int, ...]):
    """Numbers of a dtype, with its extremes: NaN, both infinities, both zeros, the largest integers."""
    count = math.prod(shape)
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    if dtype in ENCODED_DTYPES:
        bits = random.integers(0, 2 ** (8 * np.dtype(ENCODED_DTYPES[dtype]).itemsize), count)
        encoded = EncodedArray(bits.astype(ENCODED_DTYPES[dtype]).reshape(shape), dtype)
        return EncodedArray(np.where(np.isnan(encoded.decode()), 0, encoded.bits).astype(encoded.bits.dtype), dtype)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return random.integers(0, 2, count).astype(bool).reshape(shape)
    if kind in "iu":
        info = np.iinfo(dtype)
        values = random.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
        values[random.random(count) < 0.3] = [info.min, info.max, 0][seed % 3]
        return values.reshape(shape)
    values = random.standard_normal(count).astype(dtype)
    places = random.random(count) < 0.4
    values[places] = random.choice(SPECIAL, int(places.sum()))
    return values.reshape(shape)


@st.composite
def arrays(draw, shape: tuple[int, ...], dtypes=DTYPES):
    return array_of(draw, draw(st.sampled_from(dtypes)), shape)


@st.composite
def raggeds(draw, rows: int, dtypes=DTYPES):
    lengths = draw(st.lists(st.integers(0, 6), min_size=rows, max_size=rows))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Ragged(array_of(draw, draw(st.sampled_from(dtypes)), (int(offsets[-1]),)), offsets)


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers(-(2**70), 2**70) | st.booleans() | st.none()
data = st.recursive(
    numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
REAL = tuple(name for name in DTYPES if not name.startswith("complex"))


@st.composite
def records(draw):
    kind = draw(st.sampled_from((*ROWS_FIELDS, *MATRIX_FIELDS, "loss", "training_metrics")))
    rows = draw(st.integers(0, 4))
    fields: dict = {}
    for name in ROWS_FIELDS.get(kind, ()):
        fields[name] = draw(raggeds(rows, REAL))
    if "trajector" in kind:
        fields["reward"] = draw(arrays((rows,), REAL))
        if draw(st.booleans()):
            fields["logprobs"] = draw(raggeds(rows, REAL))
        if draw(st.booleans()):
            fields["extra_fields"] = [{"task_id": draw(data)} for _ in range(rows)]
    for name in MATRIX_FIELDS.get(kind, ()):
        columns = draw(st.integers(0, 4))
        fields[name] = draw(arrays((rows, columns)) | raggeds(rows) | arrays(()))
    if kind == "loss":
        fields |= {"loss": draw(st.floats()), "pg_loss": draw(arrays((), ("float32", "float64", "bfloat16")))}
    if kind in ("loss", "training_metrics"):
        fields["metrics"] = draw(st.dictionaries(st.text(max_size=4), data, max_size=3))
    if draw(st.booleans()) and kind != "my_own_kind":
        fields["beyond the document"] = draw(arrays((2, 0)) | raggeds(2, REAL) | data)
    has_ids = draw(st.booleans())
    return Record(
        key=RecordKey(kind, draw(st.integers(-1, 9)), draw(st.integers(0, 3)), draw(st.integers(0, 3)), 1, 2),
        fields=fields,
        samples=tuple(SampleId(f"g{i}", i) for i in range(rows)) if has_ids else (),
        prompt_hashes=tuple(f"{i:016x}" for i in range(rows)) if has_ids else (),
        role="policy",
        coordinates={"dp": 1, "tp": 0},
        policy_version=draw(st.none() | st.integers(0, 5)),
        extra=draw(st.dictionaries(st.text(max_size=4), data, max_size=2)),
    )


def same(left, right) -> bool:
    """Equal in type, dtype, shape and every bit; all NaNs of a dtype count as one."""
    if isinstance(left, Ragged):
        return isinstance(right, Ragged) and same(left.offsets, right.offsets) and same(left.values, right.values)
    if isinstance(left, EncodedArray):
        return isinstance(right, EncodedArray) and left.dtype == right.dtype and same(left.bits, right.bits)
    if isinstance(left, np.ndarray):
        if not isinstance(right, np.ndarray) or (left.dtype, left.shape) != (right.dtype, right.shape):
            return False
        return _settled_bits(left) == _settled_bits(right)
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and repr(left) == repr(right)


def _settled_bits(array: np.ndarray) -> bytes:
    if array.dtype.kind == "c":
        array = np.ascontiguousarray(array).reshape(-1).view(array.real.dtype)
    return (
        np.where(np.isnan(array), np.array(np.nan, array.dtype), array) if array.dtype.kind == "f" else array
    ).tobytes()


def assert_same(before: Record, after: Record) -> None:
    assert after.key == before.key
    assert after.samples == before.samples and after.prompt_hashes == before.prompt_hashes
    assert (after.role, after.coordinates, after.policy_version) == (
        before.role,
        before.coordinates,
        before.policy_version,
    )
    assert same(dict(before.extra), dict(after.extra)), (before.extra, after.extra)
    assert after.fields.keys() == before.fields.keys()
    for name, value in before.fields.items():
        assert same(value, after.fields[name]), (name, value, after.fields[name])


def through_native(record: Record, folder: Path) -> Record:
    path = folder / "x.safetensors"
    header, buffers = native.encode([record])
    path.write_bytes(header + b"".join(buffers))
    return native.decode(path).read(0)


def through_pt(record: Record, folder: Path) -> Record:
    path = folder / "x.pt"
    dump_pt(to_dict(record), path)
    return from_dict(record.key.kind, load_pt(path))


def through_jsonl(record: Record, folder: Path) -> Record:
    path = folder / "x.jsonl"
    dump_jsonl(to_dict(record), path)
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"bare {name} is no JSON"))
    return from_dict(record.key.kind, load_jsonl(path))


def survives_everything(record: Record, folder: Path) -> None:
    for through in (through_native, through_pt, through_jsonl):
        assert_same(record, through(record, folder))
    loaded = torch.load(folder / "x.pt", weights_only=True)
    assert loaded["step"] == record.key.step


SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


@settings(SETTINGS, max_examples=30, derandomize=True)
@given(record=records())
def test_any_record_survives(tmp_path_factory, record):
    survives_everything(record, tmp_path_factory.getbasetemp())


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(SETTINGS, max_examples=5000)
@given(record=records())
def test_thousands_of_records_survive(tmp_path_factory, record):
    survives_everything(record, tmp_path_factory.getbasetemp())
