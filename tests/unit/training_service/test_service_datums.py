"""Datums are checked on arrival: an error names the datum and the input, a good one keeps what was sent."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rldbg.training_service.datums import make_datum, tensor_from_json, tokens_from_json
from rldbg.training_service.errors import ServiceRequestError
from rldbg.training_service.losses import LossSettings, check_inputs

LIMITS = {"vocabulary_size": 50, "max_length": 8}


def datum(tokens=(1, 2, 3), **inputs):
    inputs = {"target_tokens": np.asarray([2, 3, 4]), **{k: np.asarray(v, np.float32) for k, v in inputs.items()}}
    return make_datum("datum 0", np.asarray(tokens), inputs, **LIMITS)


def test_the_prompt_ends_before_the_first_trained_token():
    assert datum(loss_mask=[0, 0, 1]).prompt_length == 3
    assert datum(advantages=[0, 0.5, 0.5], logprobs=[0, -1, -1]).prompt_length == 2
    assert datum(advantages=[0, 0, 0], loss_mask=[0, 1, 1]).prompt_length == 2, "the mask knows better than zeros"
    assert datum(advantages=[0, 0, 0]).prompt_length == 1
    assert datum(advantages=[0, 0, 0], logprobs=[0, -1, -1]).prompt_length == 2, "an answer that nothing is learnt from"
    assert datum().sequence.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("tokens", "inputs", "message"),
    [
        ([], {}, "no tokens"),
        ([1] * 8, {}, "8 tokens and a target, where the model takes 8"),
        ([1, 2, 50], {}, r"model_input\[2\] is 50, outside the vocabulary of 50"),
        ([1, 2, -1], {}, "outside the vocabulary"),
        ([1, 2, 3], {"weights": [1, 1]}, r"weights has shape \[2\], model_input has 3"),
        ([1, 2, 3], {"weights": [1, np.nan, 1]}, r"weights\[1\] is nan"),
        ([1, 2, 3], {"logprobs": [0, 0, -np.inf]}, r"logprobs\[2\] is -inf"),
    ],
)
def test_a_wrong_datum_is_refused_by_name(tokens, inputs, message):
    with pytest.raises(ServiceRequestError, match=message):
        datum(tokens, **inputs)


def test_what_is_masked_out_may_hold_anything():
    assert datum(logprobs=[np.nan, -1, -1], loss_mask=[0, 1, 1]).prompt_length == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("abc", "expected"),
        ({"data": [1], "dtype": "complex64"}, "complex64"),
        ({"data": ["x"], "dtype": "float32"}, "not a tensor"),
        ({"data": [1, 2, 3], "dtype": "int64", "shape": [2]}, "not a tensor"),
        ({"data": [1], "dtype": "int64", "sparse_crow_indices": [0, 1]}, "sparse"),
        ({"data": [10**30], "dtype": "int64"}, "not a tensor"),
        (None, "expected"),
    ],
)
def test_a_wrong_tensor_is_refused(value, message):
    with pytest.raises(ServiceRequestError, match=message):
        tensor_from_json("here", value)


def test_tensors_are_read_with_or_without_a_type():
    assert tensor_from_json("x", {"data": [1, 2], "dtype": "int64"}).tolist() == [1, 2]
    assert tensor_from_json("x", [0.5, 1]).dtype == np.float32
    assert tensor_from_json("x", [1, 2]).dtype == np.int64


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["chunks", "type", "tokens"]), inner),
    max_leaves=8,
)


@given(JSON)
def test_any_json_is_tokens_or_refused(value):
    with contextlib.suppress(ServiceRequestError):
        tokens_from_json("prompt", value)
    with contextlib.suppress(ServiceRequestError):
        tensor_from_json("x", value)


def test_a_loss_says_what_it_needs_and_what_it_would_ignore():
    with pytest.raises(ServiceRequestError, match="ppo needs loss_fn_inputs\\['logprobs'\\]"):
        check_inputs("datum 0", datum(advantages=[0, 1, 1]), LossSettings("ppo"))
    with pytest.raises(ServiceRequestError, match="needs loss_fn_inputs\\['ref_logprobs'\\]"):
        check_inputs("datum 0", datum(weights=[0, 1, 1]), LossSettings("cross_entropy", kl_coeff=0.1))
    with pytest.raises(ServiceRequestError, match="no loss uses 'wieghts'"):
        check_inputs("datum 0", datum(weights=[0, 1, 1], wieghts=[0, 1, 1]), LossSettings("cross_entropy"))
    check_inputs("datum 0", datum(anything=[0, 1, 1]), LossSettings("forward_logprob"))


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("grpo", {}, "unknown loss: 'grpo'"),
        (None, {}, "unknown loss: None"),
        (["ppo"], {}, "unknown loss"),
        ("ppo", [], "not a mapping"),
        ("ppo", {"clip_lo": 0.1}, "unknown key 'loss_fn_config.clip_lo'; valid names: .*clip_low_threshold"),
        ("ppo", {"clip_low_threshold": "x"}, "clip_low_threshold: 'x' .expected a valid number"),
        ("ppo", {"aggregation": "mean"}, "expected 'token_mean', 'sequence_mean' or 'sum'"),
        ("ppo", {"denominator": 0}, "denominator: 0.*above 0"),
        ("ppo", {"micro_batch_size": -1}, "micro_batch_size: -1.*above 0"),
    ],
)
def test_a_wrong_loss_is_refused_by_name(name, config, message):
    with pytest.raises(ServiceRequestError, match=message):
        LossSettings.parse(name, config)
