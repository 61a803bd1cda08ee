"""Adapters: only they are trained, what is saved of them trains on bit for bit, and others see whole weights."""

import numpy as np
import pytest
import torch

from rldbg.trainer import Recipe, build_model, load_tokenizer
from rldbg.training_service.datums import Datum
from rldbg.training_service.errors import ServiceRequestError, read_settings
from rldbg.training_service.lora import LoraSettings, is_adapter, merged
from rldbg.training_service.losses import LossSettings
from rldbg.training_service.models import AdamSettings, TrainedModel, load_weights

TOKENS = np.array([5, 12, 6, 16, 11], np.int64)
DATUM = Datum(TOKENS, {"target_tokens": np.array([12, 6, 16, 11, 1]), "weights": np.array([0, 0, 0, 1, 1], np.float32)})
ADAM = AdamSettings(0.01, 0.9, 0.95, 1e-8, 0.0, 0.0)


def module(seed=0):
    return build_model(Recipe().model, vocabulary_size=load_tokenizer("tiny").vocabulary_size, seed=seed)


def model(lora=None, seed=0):
    return TrainedModel("m", "tiny", module(seed), None, lora)


def train(item, steps):
    losses = []
    for _ in range(steps):
        losses.append(item.run_pass([DATUM], LossSettings("cross_entropy"), backward=True).metrics["loss"])
        item.optimizer_step(ADAM)
    return losses


def test_a_new_adapter_changes_nothing_and_only_adapters_are_trained():
    plain, adapted = model(), model(LoraSettings(rank=4))
    before = {name: value.clone() for name, value in adapted.weights.items()}
    first = plain.run_pass([DATUM], LossSettings("cross_entropy"), backward=False).metrics["loss"]
    losses = train(adapted, 8)
    assert losses[0] == pytest.approx(first, rel=1e-6) and losses[-1] < losses[0] / 2
    changed = {name for name, value in adapted.weights.items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if is_adapter(name)} and changed
    assert {len(before[name]) for name in changed if name.endswith("down")} == {4}


def test_others_get_whole_weights():
    adapted, plain = model(LoraSettings(rank=4)), module()
    train(adapted, 3)
    assert adapted.whole_weights.keys() == dict(plain.named_parameters()).keys()
    for weights in (adapted.whole_weights, adapted.weights):
        load_weights(plain, weights)
        served = TrainedModel("n", "tiny", plain, None)
        losses = [item.run_pass([DATUM], LossSettings("cross_entropy"), backward=False) for item in (adapted, served)]
        assert losses[1].metrics["loss"] == pytest.approx(losses[0].metrics["loss"], rel=1e-5)


def test_training_goes_on_from_what_was_saved_bit_for_bit():
    adapted = model(LoraSettings(rank=4))
    train(adapted, 3)
    saved = {name: value.clone() for name, value in adapted.weights.items()}
    optimizer = adapted.optimizer_state()
    again = model(LoraSettings(rank=4), seed=1)
    again.load(saved, optimizer)
    assert train(again, 2) == train(adapted, 2)
    whole = merged(saved)
    again.load(whole, None)
    assert all(torch.equal(again.whole_weights[name], value) for name, value in whole.items())


def test_the_places_of_adapters_are_the_clients():
    names = {
        name for name in model(LoraSettings(rank=2, train_mlp=False, train_unembed=False)).weights if is_adapter(name)
    }
    assert names and all("self_attn" in name for name in names)


@pytest.mark.parametrize(
    ("given", "told"), [({"rank": 0}, "rank"), ({}, "rank"), ({"rank": 2, "alpha": 3}, "alpha"), (3, "mapping")]
)
def test_settings_that_do_not_fit_are_refused_by_name(given, told):
    with pytest.raises(ServiceRequestError, match=told):
        read_settings(LoraSettings, given, "lora_config")
