"""Tinker's binary messages: the forward-backward request it sends, and the two results it takes as protobuf.

`_SCHEMA` has the field numbers of the public messages of the tinker package, as far as they are used here. Map fields
are written as the repeated entries that they are on the wire.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from rldbg.training_service.datums import Datum, make_datum
from rldbg.training_service.errors import ServiceRequestError
from rldbg.training_service.sampling import Samples, TopLogprobs

CONTENT_TYPE = "application/x-protobuf"

# DType: 1 float32, 2 int64, 3 int32, 4 bfloat16 (which no client sends).
_DTYPES: Mapping[int, type] = {1: np.float32, 2: np.int64, 3: np.int32}
_FLOAT32 = 1
_STOP_REASONS = {"stop": 0, "length": 1}

# Fields in the order of their numbers, from 1: "name type", with * for repeated.
_SCHEMA: Mapping[str, str] = {
    # A datum is decoded by itself: its errors must be told to the right sequence number.
    "ForwardBackwardRequest": "model_id string, seq_id int32, data *bytes, loss_fn string,"
    " loss_fn_config *NumberEntry, forward_only bool, loss_fn_config_v2 *ConfigEntry",
    "NumberEntry": "key string, value double",
    "ConfigEntry": "key string, value LossConfigValue",
    "LossConfigValue": "number double, text string",
    "Datum": "model_input *Chunk, loss_fn_inputs *TensorEntry",
    "TensorEntry": "key string, value Tensor",
    "Chunk": "encoded_text EncodedText, image bytes, dmel bytes",
    "EncodedText": "tokens bytes",
    "Tensor": "dense bytes, sparse_csr bytes, dtype int32, shape *int64",
    "ForwardBackwardOutput": "loss_fn_output_type string, loss_fn_outputs *ArrayRecord, metrics *NumberEntry",
    "ArrayRecord": "type string, fields *BatchedEntry, num_datums int64",
    "BatchedEntry": "key string, value BatchedTensor",
    "BatchedTensor": "data bytes, offsets bytes, dtype int32",
    "SampleResponse": "sequences *SampledSequence, prompt_logprobs bytes, topk_prompt_logprobs TopkLogprobs",
    "SampledSequence": "stop_reason int32, tokens bytes, logprobs bytes, topk_logprobs TopkLogprobs",
    "TopkLogprobs": "token_ids bytes, logprobs bytes, k uint32, length uint32",
}


def _message_classes(schema: Mapping[str, str]) -> dict[str, Any]:
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tinker.proto", package="tinker", syntax="proto3")
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        for number, field in enumerate(fields.split(", "), start=1):
            field_name, kind = field.split()
            described = message.field.add(name=field_name, number=number)
            described.label = field_type.LABEL_REPEATED if kind[0] == "*" else field_type.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            if kind in schema:
                described.type, described.type_name = field_type.TYPE_MESSAGE, f".tinker.{kind}"
            else:
                described.type = field_type.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tinker.{name}")) for name in schema}


_MESSAGES = _message_classes(_SCHEMA)


@dataclass(frozen=True, slots=True)
class PassMessage:
    """ForwardBackwardRequest, its datums not yet decoded."""

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


def read_pass(content: bytes) -> PassMessage:
    message = _read("ForwardBackwardRequest", content, "the body")
    config: dict[str, float | str] = {entry.key: entry.value for entry in message.loss_fn_config}
    for entry in message.loss_fn_config_v2:
        config[entry.key] = entry.value.text or entry.value.number
    return PassMessage(
        model_id=message.model_id,
        seq_id=message.seq_id,
        loss_fn=message.loss_fn,
        loss_fn_config=config,
        forward_only=message.forward_only,
        raw_datums=tuple(message.data),
    )


def write_pass_result(metrics: Mapping[str, float], logprobs: Sequence[np.ndarray]) -> bytes:
    """ForwardBackwardOutput with one record for all datums."""
    rows = [np.ascontiguousarray(row, dtype=np.float32) for row in logprobs]
    message = _MESSAGES["ForwardBackwardOutput"](loss_fn_output_type="ArrayRecord")
    record = message.loss_fn_outputs.add(type="ArrayRecord", num_datums=len(rows))
    tensor = record.fields.add(key="logprobs").value
    tensor.data = b"".join(row.tobytes() for row in rows)
    tensor.offsets = np.cumsum([0, *(row.nbytes for row in rows)], dtype=np.int64).tobytes()
    tensor.dtype = _FLOAT32
    for name, value in metrics.items():
        message.metrics.add(key=name, value=value)
    return bytes(message.SerializeToString())


def write_samples(samples: Samples) -> bytes:
    """SampleResponse; prompt_logprobs has NaN where there is none."""
    message = _MESSAGES["SampleResponse"]()
    for sequence in samples.sequences:
        written = message.sequences.add(stop_reason=_STOP_REASONS[sequence.stop_reason])
        written.tokens = np.asarray(sequence.tokens, dtype=np.int32).tobytes()
        written.logprobs = np.asarray(sequence.logprobs, dtype=np.float32).tobytes()
        if sequence.top is not None:
            _set_top(written.topk_logprobs, sequence.top)
    if samples.prompt_logprobs is not None:
        message.prompt_logprobs = samples.prompt_logprobs.astype(np.float32).tobytes()
    if samples.prompt_top is not None:
        _set_top(message.topk_prompt_logprobs, samples.prompt_top)
    return bytes(message.SerializeToString())


def _set_top(message: Any, top: TopLogprobs) -> None:
    message.token_ids = top.token_ids.astype(np.int32).tobytes()
    message.logprobs = top.logprobs.astype(np.float32).tobytes()
    message.length, message.k = top.token_ids.shape


def _read(name: str, content: bytes, where: str) -> Any:
    try:
        return _MESSAGES[name].FromString(content)
    except DecodeError as error:
        raise ServiceRequestError(f"{where} is not a {name} message: {error}") from error


def _datum(where: str, content: bytes, **limits: Any) -> Datum:
    message = _read("Datum", content, where)
    parts = [_chunk(f"{where}: chunk {number}", chunk) for number, chunk in enumerate(message.model_input)]
    inputs = {entry.key: _tensor(f"{where}: {entry.key}", entry.value) for entry in message.loss_fn_inputs}
    tokens = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
    return make_datum(where, tokens, inputs, **limits)


def _chunk(where: str, chunk: Any) -> np.ndarray:
    if chunk.image or chunk.dmel:
        raise ServiceRequestError(f"{where} is an image or audio; only encoded_text is supported here")
    return _array(where, chunk.encoded_text.tokens, np.int32).astype(np.int64)


def _tensor(where: str, tensor: Any) -> np.ndarray:
    if tensor.sparse_csr:
        raise ServiceRequestError(f"{where}: sparse tensors are not supported here")
    if tensor.dtype not in _DTYPES:
        raise ServiceRequestError(f"{where}: data type {tensor.dtype} is not one of float32, int64, int32")
    array = _array(where, tensor.dense, _DTYPES[tensor.dtype])
    shape = list(tensor.shape)
    try:
        return array.reshape(shape) if shape else array
    except ValueError as error:
        raise ServiceRequestError(f"{where}: {len(array)} values do not have the shape {shape}") from error


def _array(where: str, raw: bytes, dtype: type) -> np.ndarray:
    if len(raw) % np.dtype(dtype).itemsize:
        raise ServiceRequestError(f"{where}: {len(raw)} bytes are not a whole number of {np.dtype(dtype).name} values")
    return np.frombuffer(raw, dtype=dtype)
