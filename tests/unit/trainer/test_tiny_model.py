"""The built-in model is the Llama of transformers: same weights from a seed, same logits, with and without a cache."""

import subprocess
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rldbg.trainer import ModelSettings, build_model
from rldbg.trainer.determinism import seed_everything
from rldbg.trainer.tiny_model import TinyLlama

VOCABULARY = 20
HALF_OF_THE_DIGITS = 2.0**-12  # of float32: no order of summation costs that many here, any other formula does


def assert_near(ours, theirs):
    size = float(theirs.detach().abs().max())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=HALF_OF_THE_DIGITS * size)


@pytest.fixture
def tiny():
    return build_model(ModelSettings(), vocabulary_size=VOCABULARY, seed=3)


def padded_batch():
    input_ids = torch.randint(2, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    attention_mask = torch.ones_like(input_ids)
    attention_mask[0, :4] = 0
    return {
        "input_ids": input_ids * attention_mask,
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(-1) - 1).clamp(min=0),
    }


def test_a_seed_gives_the_weights_that_transformers_draws(tiny):
    settings = tiny.config.to_dict()
    settings.pop("model_type")
    seed_everything(3)
    theirs = LlamaForCausalLM(LlamaConfig(**settings)).state_dict()
    ours = tiny.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_logits_and_gradients_are_those_of_transformers(tiny):
    theirs, batch = tiny.to_transformers(), padded_batch()
    assert not [word for word in theirs.config.to_dict() if "expert" in word], "it is no mixture"
    attended = batch["attention_mask"].bool()
    ours_out, theirs_out = (model(**batch, use_cache=False).logits[attended] for model in (tiny, theirs))
    assert_near(ours_out, theirs_out)
    for logits in (ours_out, theirs_out):
        logits.log_softmax(-1)[:, 0].sum().backward()
    other = dict(theirs.named_parameters())
    for name, parameter in tiny.named_parameters():
        assert_near(parameter.grad, other[name].grad)


def test_a_cache_changes_nothing(tiny):
    batch = padded_batch()
    whole = tiny(**batch).logits
    first = tiny(
        input_ids=batch["input_ids"][:, :6],
        attention_mask=batch["attention_mask"][:, :6],
        position_ids=batch["position_ids"][:, :6],
        use_cache=True,
    )
    rest = tiny(
        input_ids=batch["input_ids"][:, 6:],
        attention_mask=batch["attention_mask"],
        position_ids=batch["position_ids"][:, 6:],
        past_key_values=first.past_key_values,
        use_cache=True,
    )
    assert_near(rest.logits, whole[:, 6:])


def test_columns_count_up_and_all_are_attended_unless_told_otherwise(tiny):
    input_ids = torch.tensor([[2, 3, 4, 5]])
    told = tiny(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), position_ids=torch.arange(4)[None])
    assert torch.equal(tiny(input_ids=input_ids).logits, told.logits)


def test_padding_stays_finite_in_forward_and_backward(tiny):
    batch = padded_batch()
    batch["attention_mask"][1] = 0
    logits = tiny(**batch).logits
    logits.sum().backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in tiny.parameters())


def test_training_the_tiny_model_loads_no_transformers():
    code = (
        "import sys; from rldbg.trainer import ModelSettings, build_model;"
        "build_model(ModelSettings(), vocabulary_size=20, seed=0); assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bfloat16_stays_bfloat16():
    model = build_model(ModelSettings(dtype="bfloat16"), vocabulary_size=VOCABULARY, seed=0)
    assert isinstance(model, TinyLlama) and model(**padded_batch()).logits.dtype is torch.bfloat16
