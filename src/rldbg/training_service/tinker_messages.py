"""Tinker's binary messages: the forward-backward request it sends, and the two results it takes as protobuf.

Field numbers are those of the public messages of the tinker package; text in comments names the fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.training_service import wire
from rldbg.training_service.datums import Datum, make_datum
from rldbg.training_service.errors import RequestError
from rldbg.training_service.sampling import Samples, TopLogprobs

CONTENT_TYPE = "application/x-protobuf"

# DType: 1 float32, 2 int64, 3 int32, 4 bfloat16 (which no client sends).
_DTYPES: Mapping[int, type] = {1: np.float32, 2: np.int64, 3: np.int32}
_FLOAT32 = 1
_STOP_REASONS = {"stop": 0, "length": 1}


@dataclass(frozen=True, slots=True)
class PassMessage:
    """ForwardBackwardRequest, its datums not yet decoded: their errors must be told to the right sequence number."""

    model_id: str
    seq_id: int
    loss_fn: str
    loss_fn_config: Mapping[str, float | str]
    forward_only: bool
    raw_datums: tuple[bytes, ...]

    def datums(self, *, vocabulary_size: int, max_length: int) -> tuple[Datum, ...]:
        return tuple(
            _datum(f"datum {number}", raw, vocabulary_size=vocabulary_size, max_length=max_length)
            for number, raw in enumerate(self.raw_datums)
        )


def read_pass(message: bytes) -> PassMessage:
    """1 model_id, 2 seq_id, 3 data, 4 loss_fn, 5 loss_fn_config, 6 forward_only, 7 loss_fn_config_v2."""
    values: dict[int, wire.Value] = {}
    datums: list[bytes] = []
    config: dict[str, float | str] = {}
    for number, value in wire.read_fields(message):
        if number == 3:
            datums.append(wire.as_bytes(value))
        elif number == 5:
            key, entry = wire.read_map_entry(wire.as_bytes(value))
            config.setdefault(key, 0.0 if entry is None else wire.as_number(entry))
        elif number == 7:
            key, entry = wire.read_map_entry(wire.as_bytes(value))
            config[key] = _config_value(b"" if entry is None else wire.as_bytes(entry))
        else:
            values[number] = value
    return PassMessage(
        model_id=wire.as_text(values.get(1, b"")),
        seq_id=wire.as_integer(values.get(2, 0)),
        loss_fn=wire.as_text(values.get(4, b"")),
        loss_fn_config=config,
        forward_only=bool(values.get(6, 0)),
        raw_datums=tuple(datums),
    )


def write_pass_result(metrics: Mapping[str, float], logprobs: Sequence[np.ndarray]) -> bytes:
    """ForwardBackwardOutput: 1 loss_fn_output_type, 2 loss_fn_outputs (one record for all datums), 3 metrics."""
    rows = [np.ascontiguousarray(row, dtype=np.float32) for row in logprobs]
    offsets = np.cumsum([0, *(row.nbytes for row in rows)], dtype=np.int64)
    tensor = (
        wire.write_bytes(1, b"".join(row.tobytes() for row in rows))
        + wire.write_bytes(2, offsets.tobytes())
        + wire.write_integer(3, _FLOAT32)
    )
    record = wire.write_message(2, wire.write_text(1, "logprobs"), wire.write_bytes(2, tensor))
    entries = (
        wire.write_message(3, wire.write_text(1, name), wire.write_double(2, value)) for name, value in metrics.items()
    )
    return b"".join(
        (
            wire.write_text(1, "ArrayRecord"),
            wire.write_message(2, wire.write_text(1, "ArrayRecord"), record, wire.write_integer(3, len(rows))),
            *entries,
        )
    )


def write_samples(samples: Samples) -> bytes:
    """SampleResponse: 1 sequences, 2 prompt_logprobs (NaN where there is none), 3 topk_prompt_logprobs."""
    message = b""
    for sequence in samples.sequences:
        fields = [
            wire.write_integer(1, _STOP_REASONS[sequence.stop_reason]),
            wire.write_bytes(2, np.asarray(sequence.tokens, dtype=np.int32).tobytes()),
            wire.write_bytes(3, np.asarray(sequence.logprobs, dtype=np.float32).tobytes()),
        ]
        if sequence.top is not None:
            fields.append(_top_logprobs(4, sequence.top))
        message += wire.write_message(1, *fields)
    if samples.prompt_logprobs is not None:
        message += wire.write_bytes(2, samples.prompt_logprobs.astype(np.float32).tobytes())
    if samples.prompt_top is not None:
        message += _top_logprobs(3, samples.prompt_top)
    return message


def _top_logprobs(number: int, top: TopLogprobs) -> bytes:
    """TopkLogprobs: 1 token_ids, 2 logprobs, 3 k, 4 length."""
    return wire.write_message(
        number,
        wire.write_bytes(1, top.token_ids.astype(np.int32).tobytes()),
        wire.write_bytes(2, top.logprobs.astype(np.float32).tobytes()),
        wire.write_integer(3, top.token_ids.shape[1]),
        wire.write_integer(4, top.token_ids.shape[0]),
    )


def _config_value(message: bytes) -> float | str:
    """LossConfigValue: 1 number, 2 text."""
    found: float | str = 0.0
    for number, value in wire.read_fields(message):
        found = wire.as_number(value) if number == 1 else wire.as_text(value)
    return found


def _datum(where: str, message: bytes, **limits: Any) -> Datum:
    """Datum: 1 model_input chunks, 2 loss_fn_inputs; the provenance spans (3, 4) are not needed."""
    parts: list[np.ndarray] = []
    inputs: dict[str, np.ndarray] = {}
    for number, value in wire.read_fields(message):
        if number == 1:
            parts.append(_chunk(f"{where}: chunk {len(parts)}", wire.as_bytes(value)))
        elif number == 2:
            name, tensor = wire.read_map_entry(wire.as_bytes(value))
            inputs[name] = _tensor(f"{where}: {name}", b"" if tensor is None else wire.as_bytes(tensor))
    tokens = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    return make_datum(where, tokens, inputs, **limits)


def _chunk(where: str, message: bytes) -> np.ndarray:
    """Chunk: 1 encoded_text {1 tokens as int32}, 2 image, 3 dmel."""
    for number, value in wire.read_fields(message):
        if number != 1:
            raise RequestError(f"{where} is an image or audio; only encoded_text is supported here")
        for inner, tokens in wire.read_fields(wire.as_bytes(value)):
            if inner == 1:
                return _array(where, wire.as_bytes(tokens), np.int32).astype(np.int64)
    return np.empty(0, dtype=np.int64)


def _tensor(where: str, message: bytes) -> np.ndarray:
    """Tensor: 1 dense, 2 sparse_csr, 3 dtype, 4 shape."""
    dense, code, shape = b"", 0, []
    for number, value in wire.read_fields(message):
        if number == 1:
            dense = wire.as_bytes(value)
        elif number == 2:
            raise RequestError(f"{where}: sparse tensors are not supported here")
        elif number == 3:
            code = wire.as_integer(value)
        elif number == 4:
            shape += wire.packed_integers(value)
    if code not in _DTYPES:
        raise RequestError(f"{where}: data type {code} is none of float32, int64, int32")
    array = _array(where, dense, _DTYPES[code])
    try:
        return array.reshape(shape) if shape else array
    except ValueError as error:
        raise RequestError(f"{where}: {len(array)} values do not have the shape {shape}") from error


def _array(where: str, raw: bytes, dtype: type) -> np.ndarray:
    if len(raw) % np.dtype(dtype).itemsize:
        raise RequestError(f"{where}: {len(raw)} bytes are no whole number of {np.dtype(dtype).name}")
    return np.frombuffer(raw, dtype=dtype)
