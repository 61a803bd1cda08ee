"""Tinker's messages by field numbers written down a second time; any bytes are read or refused."""

import contextlib

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from rldbg.training_service.errors import ServiceRequestError
from rldbg.training_service.sampling import SampledSequence, Samples, TopLogprobs
from rldbg.training_service.tinker_messages import read_pass, write_pass_result, write_samples

F = descriptor_pb2.FieldDescriptorProto
LIMITS = {"vocabulary_size": 100, "max_length": 64}

# name -> fields (name, number, type, repeated, message type); `map:` makes a map entry with that value type.
MESSAGES = {
    "Request": [
        ("model_id", 1, F.TYPE_STRING, False, None),
        ("seq_id", 2, F.TYPE_INT32, False, None),
        ("data", 3, F.TYPE_MESSAGE, True, "Datum"),
        ("loss_fn", 4, F.TYPE_STRING, False, None),
        ("loss_fn_config", 5, F.TYPE_MESSAGE, True, "NumberEntry"),
        ("forward_only", 6, F.TYPE_BOOL, False, None),
        ("loss_fn_config_v2", 7, F.TYPE_MESSAGE, True, "ValueEntry"),
    ],
    "NumberEntry": [("key", 1, F.TYPE_STRING, False, None), ("value", 2, F.TYPE_DOUBLE, False, None)],
    "ValueEntry": [("key", 1, F.TYPE_STRING, False, None), ("value", 2, F.TYPE_MESSAGE, False, "ConfigValue")],
    "ConfigValue": [("number", 1, F.TYPE_DOUBLE, False, None), ("text", 2, F.TYPE_STRING, False, None)],
    "Datum": [
        ("model_input", 1, F.TYPE_MESSAGE, True, "Chunk"),
        ("loss_fn_inputs", 2, F.TYPE_MESSAGE, True, "TensorEntry"),
    ],
    "TensorEntry": [("key", 1, F.TYPE_STRING, False, None), ("value", 2, F.TYPE_MESSAGE, False, "Tensor")],
    "Chunk": [("encoded_text", 1, F.TYPE_MESSAGE, False, "Text"), ("image", 2, F.TYPE_MESSAGE, False, "Text")],
    "Text": [("tokens", 1, F.TYPE_BYTES, False, None)],
    "Tensor": [
        ("dense", 1, F.TYPE_BYTES, False, None),
        ("sparse_csr", 2, F.TYPE_MESSAGE, False, "Text"),
        ("dtype", 3, F.TYPE_INT32, False, None),
        ("shape", 4, F.TYPE_INT64, True, None),
    ],
    "Output": [
        ("type", 1, F.TYPE_STRING, False, None),
        ("records", 2, F.TYPE_MESSAGE, True, "Record"),
        ("metrics", 3, F.TYPE_MESSAGE, True, "NumberEntry"),
    ],
    "Record": [
        ("tag", 1, F.TYPE_STRING, False, None),
        ("fields", 2, F.TYPE_MESSAGE, True, "BatchedEntry"),
        ("num_datums", 3, F.TYPE_INT64, False, None),
    ],
    "BatchedEntry": [("key", 1, F.TYPE_STRING, False, None), ("value", 2, F.TYPE_MESSAGE, False, "Batched")],
    "Batched": [
        ("data", 1, F.TYPE_BYTES, False, None),
        ("offsets", 2, F.TYPE_BYTES, False, None),
        ("dtype", 3, F.TYPE_INT32, False, None),
    ],
    "Samples": [
        ("sequences", 1, F.TYPE_MESSAGE, True, "Sequence"),
        ("prompt_logprobs", 2, F.TYPE_BYTES, False, None),
        ("top", 3, F.TYPE_MESSAGE, False, "Top"),
    ],
    "Sequence": [
        ("stop_reason", 1, F.TYPE_INT32, False, None),
        ("tokens", 2, F.TYPE_BYTES, False, None),
        ("logprobs", 3, F.TYPE_BYTES, False, None),
        ("top", 4, F.TYPE_MESSAGE, False, "Top"),
    ],
    "Top": [
        ("token_ids", 1, F.TYPE_BYTES, False, None),
        ("logprobs", 2, F.TYPE_BYTES, False, None),
        ("k", 3, F.TYPE_UINT32, False, None),
        ("length", 4, F.TYPE_UINT32, False, None),
    ],
}


@pytest.fixture(scope="module")
def reference():
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated, of in fields:
            label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
            message.field.add(name=field, number=number, type=kind, label=label, type_name=f".t.{of}" if of else None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in MESSAGES}


def request_message(reference, *, chunks=((3, 4), (5,)), weights=(0.0, 1.0, 0.5)):
    message = reference["Request"](model_id="m", seq_id=7, loss_fn="ppo", forward_only=True)
    message.loss_fn_config.add(key="clip_low_threshold", value=0.9)
    message.loss_fn_config_v2.add(key="clip_low_threshold").value.number = 0.9
    message.loss_fn_config_v2.add(key="aggregation").value.text = "sum"
    datum = message.data.add()
    for chunk in chunks:
        datum.model_input.add().encoded_text.tokens = np.asarray(chunk, dtype=np.int32).tobytes()
    targets = datum.loss_fn_inputs.add(key="target_tokens").value
    targets.dtype, targets.dense = 2, np.asarray([4, 5, 6], dtype=np.int64).tobytes()
    targets.shape.append(3)
    tensor = datum.loss_fn_inputs.add(key="weights").value
    tensor.dtype, tensor.dense = 1, np.asarray(weights, dtype=np.float32).tobytes()
    return message


def test_a_request_written_by_the_reference_is_read_field_by_field(reference):
    got = read_pass(request_message(reference).SerializeToString())
    assert (got.model_id, got.seq_id, got.loss_fn, got.forward_only) == ("m", 7, "ppo", True)
    assert got.loss_fn_config == {"clip_low_threshold": 0.9, "aggregation": "sum"}
    (datum,) = got.datums(**LIMITS)
    assert datum.tokens.tolist() == [3, 4, 5]
    assert datum.targets.tolist() == [4, 5, 6]
    np.testing.assert_array_equal(datum.inputs["weights"], np.asarray([0, 1, 0.5], np.float32))


def test_results_we_write_are_read_by_the_reference(reference):
    rows = [np.asarray([-1.5, -0.25], np.float32), np.asarray([-3.0], np.float32)]
    output = reference["Output"].FromString(write_pass_result({"loss:sum": -2.5}, rows))
    assert [(item.key, item.value) for item in output.metrics] == [("loss:sum", -2.5)]
    (record,) = output.records
    batched = record.fields[0].value
    assert (record.num_datums, record.fields[0].key, batched.dtype) == (2, "logprobs", 1)
    assert np.frombuffer(batched.offsets, np.int64).tolist() == [0, 8, 12]
    np.testing.assert_array_equal(np.frombuffer(batched.data, np.float32), np.concatenate(rows))


def test_samples_we_write_are_read_by_the_reference(reference):
    top = TopLogprobs(np.asarray([[1, 2]]), np.asarray([[-0.1, -2.0]]))
    samples = Samples(
        (SampledSequence([9], [-0.5], "length", top), SampledSequence([1], [-0.1], "stop")),
        np.asarray([np.nan, -1.0]),
    )
    got = reference["Samples"].FromString(write_samples(samples))
    assert [item.stop_reason for item in got.sequences] == [1, 0]
    assert np.frombuffer(got.sequences[0].tokens, np.int32).tolist() == [9]
    assert (got.sequences[0].top.k, got.sequences[0].top.length) == (2, 1)
    scores = np.frombuffer(got.prompt_logprobs, np.float32)
    assert np.isnan(scores[0]) and scores[1] == -1.0


def test_what_a_datum_must_not_have_is_named(reference):
    message = request_message(reference)
    message.data[0].model_input.add().image.tokens = b"x"
    with pytest.raises(ServiceRequestError, match="chunk 2 is an image"):
        read_pass(message.SerializeToString()).datums(**LIMITS)
    message = request_message(reference)
    message.data[0].loss_fn_inputs[1].value.sparse_csr.tokens = b"x"
    with pytest.raises(ServiceRequestError, match="weights: sparse"):
        read_pass(message.SerializeToString()).datums(**LIMITS)
    message = request_message(reference)
    message.data[0].loss_fn_inputs[1].value.dense = b"123"
    with pytest.raises(ServiceRequestError, match="3 bytes are not a whole number"):
        read_pass(message.SerializeToString()).datums(**LIMITS)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content):
    with contextlib.suppress(ServiceRequestError):
        read_pass(content).datums(**LIMITS)


@settings(max_examples=200)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_request_is_read_or_refused(reference, place, byte):
    content = bytearray(request_message(reference).SerializeToString())
    content[place % len(content)] = byte
    with contextlib.suppress(ServiceRequestError):
        read_pass(bytes(content)).datums(**LIMITS)


@pytest.mark.parametrize("content", [b"\x08", b"\x0a\x05ab", b"\x0f", b"\x00\x01", b"\x08" + b"\xff" * 11])
def test_malformed_messages_are_refused(content):
    with pytest.raises(ServiceRequestError, match="not a ForwardBackwardRequest message"):
        read_pass(content)
