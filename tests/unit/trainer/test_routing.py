"""A tiny model with experts: engine and trainer choose the same ones, unless something is spoiled."""

import numpy as np
import pytest
import torch

import rldbg
from rldbg.analysis import check, route_agreement
from rldbg.analysis.side import Side
from rldbg.mismatch import explain_mismatch
from rldbg.trainer.routing import captured_routes
from rldbg.trainer.settings import TinyModel
from rldbg.trainer.tiny_model import TinyLlama

KINDS = ("trajectory", "old_log_probs", "forward_data", "weights", "routing", "rollout_routing")
MIXTURE = {
    "model": {"tiny": {"hidden_size": 16, "layers": 2, "heads": 2, "experts": 4}},
    "debug": {"enable_data_dump": True, "dump_format": "safetensors", "dump_options": dict.fromkeys(KINDS, True)},
    "data": {"max_turns": 2},
}


@pytest.fixture(scope="module")
def mixture_run(tmp_path_factory, trainer_in):
    return trainer_in(tmp_path_factory.mktemp("mixture"))("clean", **MIXTURE)


def model(experts=3):
    torch.manual_seed(0)
    return TinyLlama(TinyModel(hidden_size=16, layers=2, heads=2, experts=experts), 20).eval()


def test_a_mixture_of_equal_experts_is_that_expert():
    mixed = model()
    layer = mixed.model.layers[0].mlp
    for expert in layer.experts:
        expert.load_state_dict(layer.experts[0].state_dict())
    hidden = torch.randn(1, 3, 16)
    torch.testing.assert_close(layer(hidden), layer.experts[0](hidden))


def test_routes_are_captured_pass_by_pass_and_a_dense_model_has_none():
    tokens = torch.tensor([[3, 4, 5, 6]])
    mixed = model()
    with torch.no_grad(), captured_routes(mixed) as routes:
        cache = mixed(tokens[:, :3], use_cache=True).past_key_values
        mixed(tokens[:, 3:], past_key_values=cache, use_cache=True)
    with torch.no_grad(), captured_routes(mixed) as whole:
        mixed(tokens)
    experts, weights = routes.joined()
    assert experts.shape == weights.shape == (1, 4, 2, 2)
    np.testing.assert_array_equal(experts, whole.joined()[0])
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    with torch.no_grad(), captured_routes(model(experts=0)) as none:
        model(experts=0)(tokens)
    assert none.joined() is None


def test_engine_and_trainer_choose_the_same_experts(mixture_run):
    recording = rldbg.open(mixture_run)
    assert recording.verify() == [] and {"routing", "rollout_routing"} <= set(recording.kinds())
    report = check(recording)
    assert {"routing-agrees", "experts-share-the-load", "engine-holds-what-was-sent"} <= set(report.passed)
    found = route_agreement(Side(recording, "A"), 1)
    assert found.first_layer is None and found.tokens > 40 and found.weight_gap.max() < 1e-4


@pytest.mark.parametrize(
    ("bug", "finding", "text"),
    [
        ("router-bias-in-the-engine", "routing-agrees", "tokens with the same experts"),
        ("engine-uses-one-expert", "routing-agrees", "the engine chooses 1 experts per token, the trainer 2"),
        ("one-expert-swapped", "engine-holds-what-was-sent", "holds another expert's weights"),
    ],
)
def test_what_differs_is_named(trained, bug, finding, text):
    recording = rldbg.open(trained("bug", zoo={"bug": bug}, steps=1, **MIXTURE))
    (first, *_) = check(recording, only=[finding]).findings
    assert text in first.evidence[0]
    cause = {"router-bias-in-the-engine": "routing-differs", "one-expert-swapped": "held-wrong-expert"}.get(bug)
    if cause is not None:
        assert explain_mismatch(recording).causes[0].id == cause
