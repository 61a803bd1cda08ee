"""Each loss is its documented formula, in value and gradient, and means come out of sums as documented."""

import numpy as np
import pytest
import torch

from rldbg.training_service.datums import Datum
from rldbg.training_service.errors import ServiceRequestError
from rldbg.training_service.losses import LOSSES, LossSettings
from rldbg.training_service.models import AdamSettings, TrainedModel

VOCABULARY = 11


class Bigram(torch.nn.Module):
    """The smallest causal language model: the next token's logits depend on this token alone."""

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=generator))

    def forward(self, input_ids, attention_mask=None, position_ids=None, use_cache=False):
        return type("Output", (), {"logits": self.table[input_ids]})()


def datums(count=3, seed=0, mask=True):
    generator = np.random.default_rng(seed)
    made = []
    for number in range(count):
        length = 4 + number
        inputs = {
            "target_tokens": generator.integers(0, VOCABULARY, length),
            "weights": generator.random(length).astype(np.float32),
            "logprobs": -generator.random(length).astype(np.float32) * 3,
            "ref_logprobs": -generator.random(length).astype(np.float32) * 3,
            "advantages": generator.normal(size=length).astype(np.float32),
            "surrogate_weights": generator.normal(size=length).astype(np.float32),
        }
        if mask:
            inputs["loss_mask"] = (np.arange(length) >= 2).astype(np.float32)
        made.append(Datum(generator.integers(0, VOCABULARY, length), inputs))
    return tuple(made)


def by_hand(module, data, token_loss):
    """The sum over unmasked tokens, one datum and token at a time, in double precision."""
    table = module.table.detach().double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for item in data:
        chosen = torch.log_softmax(table.detach(), -1)[item.tokens, item.targets].numpy() - item.inputs["logprobs"]
        mean = float(chosen[item.mask != 0].mean())
        for position, (token, target) in enumerate(zip(item.tokens, item.targets, strict=True)):
            if item.mask[position]:
                log_prob = torch.log_softmax(table[int(token)], -1)[int(target)]
                given = {name: float(values[position]) for name, values in item.inputs.items()}
                total = total + token_loss(log_prob, given | {"mean log ratio": mean})
    total.backward()
    return float(total.detach()), table.grad


def clip(ratio, low, high):
    return torch.clamp(ratio, low, high)


FORMULAS = {
    "cross_entropy": lambda lp, x: -x["weights"] * lp,
    "importance_sampling": lambda lp, x: -torch.exp(lp - x["logprobs"]) * x["advantages"],
    "ppo": lambda lp, x: (
        -torch.minimum(
            torch.exp(lp - x["logprobs"]) * x["advantages"],
            clip(torch.exp(lp - x["logprobs"]), 0.8, 1.2) * x["advantages"],
        )
    ),
    "gspo": lambda lp, x: (
        -torch.minimum(
            torch.exp(x["mean log ratio"] + lp - lp.detach()) * x["advantages"],
            clip(torch.exp(x["mean log ratio"] + lp - lp.detach()), 0.8, 1.2) * x["advantages"],
        )
    ),
    "cispo": lambda lp, x: -clip(torch.exp(lp - x["logprobs"]).detach(), 0.8, 1.2) * lp * x["advantages"],
    "dro": lambda lp, x: -(lp * x["advantages"] - 0.025 * (lp - x["logprobs"]) ** 2),
    "surrogate": lambda lp, x: x["surrogate_weights"] * lp,
    "forward_logprob": lambda lp, x: 0 * lp,
}


def test_every_loss_has_its_formula_here():
    assert set(FORMULAS) == set(LOSSES)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("mask", [True, False])
def test_value_and_gradient_are_the_formulas(name, mask):
    model = TrainedModel("m", "bigram", Bigram(), None)
    data = datums(mask=mask)
    result = model.run_pass(data, LossSettings(name), backward=True)
    value, gradient = by_hand(model.module, data, FORMULAS[name])
    assert result.metrics["loss"] == pytest.approx(value, rel=1e-5, abs=1e-6)
    assert result.metrics["loss:sum"] == pytest.approx(value, rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(model.module.table.grad, gradient, rtol=1e-4, atol=1e-5)


def test_gspo_takes_the_mean_over_the_tokens_its_mask_marks():
    data = datums(mask=False)
    for item in data:
        item.inputs["sequence_ratio_mask"] = (np.arange(len(item.tokens)) >= 2).astype(np.float32)
    model = TrainedModel("m", "bigram", Bigram(), None)
    result = model.run_pass(data, LossSettings("gspo"), backward=True)
    table = torch.log_softmax(model.module.table.detach(), -1).numpy()
    expected = 0.0
    for item in data:
        log_ratio = table[item.tokens, item.targets] - item.inputs["logprobs"]
        ratio = np.exp(log_ratio[2:].mean())
        advantages = item.inputs["advantages"]
        expected -= np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.2) * advantages).sum()
    assert result.metrics["loss:sum"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["ppo", "gspo", "cispo"])
def test_thresholds_of_a_datum_replace_those_of_the_request(name):
    settings = LossSettings(name, clip_low_threshold=0.95, clip_high_threshold=1.05)
    plain, own = TrainedModel("m", "bigram", Bigram(), None), TrainedModel("m", "bigram", Bigram(), None)
    data = datums()
    for item in data:
        item.inputs["clip_low_threshold"] = np.full(len(item.tokens), 0.95, np.float32)
        item.inputs["clip_high_threshold"] = np.full(len(item.tokens), 1.05, np.float32)
    plain.run_pass(datums(), settings, backward=True)
    own.run_pass(data, LossSettings(name), backward=True)
    torch.testing.assert_close(own.module.table.grad, plain.module.table.grad)


def test_log_probs_come_back_datum_by_datum():
    model = TrainedModel("m", "bigram", Bigram(), None)
    data = datums()
    result = model.run_pass(data, LossSettings("forward_logprob"), backward=False)
    table = torch.log_softmax(model.module.table.detach(), -1).numpy()
    assert model.module.table.grad is None
    for item, row in zip(data, result.logprobs, strict=True):
        np.testing.assert_allclose(row, table[item.tokens, item.targets], rtol=1e-5)


def test_a_mean_is_the_sum_over_the_denominator_however_the_batch_is_cut():
    data = datums(6)
    tokens = sum(int(item.mask.sum()) for item in data)
    whole = TrainedModel("m", "bigram", Bigram(), None)
    cut = TrainedModel("m", "bigram", Bigram(), None)
    settings = LossSettings("ppo", aggregation="token_mean", denominator=tokens, entropy_coeff=0.01, kl_coeff=0.1)
    loss = whole.run_pass(data, settings, backward=True).metrics["loss"]
    parts = [cut.run_pass(data[start : start + 2], settings, backward=True).metrics["loss"] for start in (0, 2, 4)]
    assert sum(parts) == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(cut.module.table.grad, whole.module.table.grad, rtol=1e-5, atol=1e-7)
    summed = TrainedModel("m", "bigram", Bigram(), None).run_pass(data, LossSettings("ppo"), backward=True)
    mean = LossSettings("ppo", aggregation="token_mean", denominator=tokens)
    averaged = TrainedModel("m", "bigram", Bigram(), None).run_pass(data, mean, backward=True)
    assert averaged.metrics["loss"] * tokens == pytest.approx(summed.metrics["loss"], rel=1e-6)


def test_gradients_add_up_until_the_optimizer_step_clears_them():
    model = TrainedModel("m", "bigram", Bigram(), None)
    once = TrainedModel("m", "bigram", Bigram(), None)
    data = datums()
    once.run_pass(data, LossSettings("cross_entropy"), backward=True)
    for _ in range(3):
        model.run_pass(data, LossSettings("cross_entropy"), backward=True)
    torch.testing.assert_close(model.module.table.grad, 3 * once.module.table.grad)
    model.optimizer_step(AdamSettings(0.1, 0.9, 0.95, 1e-8, 0.0, 0.0))
    assert model.module.table.grad is None


def test_the_optimizer_is_adamw_with_the_six_parameters():
    model = TrainedModel("m", "bigram", Bigram(), None)
    expected = Bigram()
    optimizer = torch.optim.AdamW(expected.parameters(), lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.2)
    for seed in range(3):
        data = datums(seed=seed)
        model.run_pass(data, LossSettings("cross_entropy"), backward=True)
        expected.table.grad = model.module.table.grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.5)
        optimizer.step()
        metrics = model.optimizer_step(AdamSettings(0.1, 0.8, 0.9, 1e-3, 0.2, 0.5))
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-6)
        torch.testing.assert_close(model.module.table, expected.table, rtol=1e-6, atol=1e-7)
    assert metrics["step"] == 3


def test_a_pass_that_fails_leaves_the_gradients_of_earlier_ones(monkeypatch):
    model = TrainedModel("m", "bigram", Bigram(), None)
    model.run_pass(datums(), LossSettings("cross_entropy"), backward=True)
    before = model.module.table.grad.clone()
    broken = datums(2)
    broken[1].inputs["target_tokens"][:] = VOCABULARY + 5
    monkeypatch.setattr("rldbg.training_service.batches.MICRO_BATCH_POSITIONS", 4)
    with pytest.raises((RuntimeError, IndexError)):
        model.run_pass(broken, LossSettings("cross_entropy"), backward=True)
    assert torch.equal(model.module.table.grad, before)


def test_what_is_masked_out_reaches_neither_loss_nor_gradient():
    data = datums()
    clean = TrainedModel("m", "bigram", Bigram(), None)
    clean.run_pass(data, LossSettings("ppo"), backward=True)
    for item in data:
        item.inputs["logprobs"][:2] = np.nan
    dirty = TrainedModel("m", "bigram", Bigram(), None)
    dirty.run_pass(data, LossSettings("ppo"), backward=True)
    assert torch.equal(dirty.module.table.grad, clean.module.table.grad)


def test_weights_that_do_not_fit_are_refused_before_any_is_copied():
    model = TrainedModel("m", "bigram", Bigram(), None)
    before = model.module.table.detach().clone()
    with pytest.raises(ServiceRequestError, match="lack table"):
        model.load({}, None)
    with pytest.raises(ServiceRequestError, match="no parameter other"):
        model.load({"table": before + 1, "other": before}, None)
    with pytest.raises(ServiceRequestError, match=r"table has shape \[2\]"):
        model.load({"table": torch.zeros(2)}, None)
    assert torch.equal(model.module.table, before)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "not a mapping"),
        ({"lr": 1}, "unknown key 'adam_params.lr'"),
        ({"beta1": 1.5}, "beta1"),
        ({"eps": "x"}, "eps"),
        ({"eps": float("inf")}, "eps"),
    ],
)
def test_wrong_optimizer_parameters_are_refused(body, message):
    with pytest.raises(ServiceRequestError, match=message):
        AdamSettings.parse(body, AdamSettings(1e-4, 0.9, 0.95, 1e-8, 0.0, 0.0))
