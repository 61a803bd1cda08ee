"""Optimizers told from gradients and the parameters that they left."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rldbg.analysis.explain import optimizer, optimizer_fits


@pytest.mark.parametrize(
    "settings", [{"lr": 0.01}, {"lr": 0.001, "weight_decay": 0.1}, {"lr": 0.01, "betas": (0.9, 0.999)}]
)
@pytest.mark.parametrize("clip", [None, 1.0])
def test_an_optimizer_is_told_from_gradients_and_parameters(settings, clip):
    import torch

    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(400, generator=generator))
    options = {"betas": (0.9, 0.95), "weight_decay": 0.0} | settings
    adam = torch.optim.AdamW([parameter], **options)
    gradients, norms, largest, parameters = [], [], [], []
    for step in range(4):
        # Norms from 0.4 to 4: a clip at 1 leaves the first gradient alone and shortens the others.
        parameter.grad = torch.randn(400, generator=generator) * 0.02 * (1 + 3 * step)
        gradients.append(parameter.grad.numpy().astype(np.float64))
        largest.append(np.abs(gradients[-1]).max())
        norms.append(float(torch.nn.utils.clip_grad_norm_([parameter], clip or float("inf"))))
        adam.step()
        parameters.append(parameter.detach().numpy().astype(np.float64))
    sizes = np.repeat(np.asarray(norms)[:, None], 400, axis=1)
    after = np.stack(parameters)
    history = optimizer_fits.History(
        *(np.stack(gradients), np.asarray(norms), np.asarray(largest), sizes, after, frozenset()),
        *(optimizer_fits.rate_of(after), np.ones(400, bool)),
    )
    found = optimizer_fits.fitting(history, optimizer_fits.CLIPS, optimizer_fits.KINDS)[0]
    assert found.rule.clip == clip and found.rule.betas == options["betas"]
    assert found.rates == pytest.approx((settings["lr"],) * 3, rel=1e-3)
    assert found.decay == pytest.approx(options["weight_decay"], abs=5e-3)


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("NAdam", {"lr": 0.01, "betas": (0.9, 0.95)}, "NAdam"),
        ("RAdam", {"lr": 0.01}, "RAdam"),
        ("SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True}, "SGD with Nesterov momentum 0.9"),
        ("SGD", {"lr": 0.01, "momentum": 0.9, "dampening": 0.5}, "SGD with dampened momentum 0.9"),
        ("SGD", {"lr": 0.01, "momentum": 0.8}, "SGD with momentum 0.8"),
        ("AdamW", {"lr": 0.01, "clip_value": 0.02}, "elements"),
        ("AdamW", {"lr": 0.01}, "AdamW"),
    ],
)
def test_optimizers_are_told_apart(kind, settings, said):
    import torch

    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(400, generator=generator))
    bound = settings.get("clip_value")
    chosen = getattr(torch.optim, kind)([parameter], **{k: v for k, v in settings.items() if k != "clip_value"})
    gradients, parameters = [], []
    for step in range(8):
        parameter.grad = torch.randn(400, generator=generator) * 0.02 * (1 + step % 3)
        gradients.append(parameter.grad.numpy().astype(np.float64))
        if bound:
            torch.nn.utils.clip_grad_value_([parameter], bound)
        chosen.step()
        parameters.append(parameter.detach().numpy().astype(np.float64))
    whole = np.stack(gradients)
    norms, sizes = np.linalg.norm(whole, axis=1), np.abs(whole).max(1)
    after = np.stack(parameters)
    history = optimizer_fits.History(
        *(whole, norms, sizes, np.repeat(norms[:, None], 400, axis=1), after, frozenset()),
        *(optimizer_fits.rate_of(after), np.ones(400, bool)),
    )
    assert said in {word for item in optimizer_fits.identified(history) for word in (item.rule.kind, item.rule.clips)}


def history_from(gradients, parameters):
    norms, sizes = np.linalg.norm(gradients, axis=1), np.abs(gradients).max(1)
    each = np.repeat(norms[:, None], gradients.shape[1], axis=1)
    rate = optimizer_fits.rate_of(parameters)
    in_matrix = np.ones(gradients.shape[1], bool)
    return optimizer_fits.History(gradients, norms, sizes, each, parameters, frozenset(), rate, in_matrix)


def trained(gradients, kind="AdamW", rate=0.01, clip=None):
    """What an optimizer makes of gradients."""
    import torch

    parameter = torch.nn.Parameter(torch.linspace(-1, 1, gradients.shape[1]))
    chosen, after = getattr(torch.optim, kind)([parameter], lr=rate), []
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient).float()
        if clip:
            torch.nn.utils.clip_grad_norm_([parameter], clip)
        chosen.step()
        after.append(parameter.detach().numpy().astype(np.float64))
    return history_from(gradients, np.stack(after))


def test_a_few_elements_refute_no_optimizer_that_all_of_them_allow(monkeypatch):
    gradients = np.random.default_rng(0).standard_normal((6, 2500)) * 0.02 * np.arange(1, 7)[:, None]
    history = trained(gradients, clip=1.0)
    kinds = optimizer_fits.KINDS
    calls = []
    whole = optimizer_fits.fit_of
    monkeypatch.setattr(optimizer_fits, "fit_of", lambda *given: calls.append(given[2]) or whole(*given))
    quick = optimizer_fits.fitting(history, optimizer_fits.CLIPS, kinds)
    few = len(calls)
    monkeypatch.setattr(optimizer_fits, "_FEW_ELEMENTS", 2500)
    assert quick and quick == optimizer_fits.fitting(history, optimizer_fits.CLIPS, kinds)
    assert few < len(optimizer_fits.CLIPS) * len(kinds)  # of four times as many, with their epsilons


def test_a_clip_that_no_gradient_of_the_other_side_reaches_is_no_difference():
    gradients = np.random.default_rng(0).standard_normal((6, 400)) * 0.02 * np.arange(1, 7)[:, None]
    small, cut, whole = (
        optimizer_fits.identified(history)[0]
        for history in (trained(gradients[:2], clip=1.0), trained(gradients, clip=1.0), trained(gradients))
    )
    assert (small.rule.clip, cut.rule.clip, whole.rule.clip) == (None, 1.0, None)
    assert not list(optimizer._differences(small, cut)) and not list(optimizer._differences(cut, small))
    assert [item[0] for item in optimizer._differences(whole, cut)] == ["gradient-clip"]


def test_an_optimizer_without_corrections_for_its_start_is_not_taken_for_another_rate():
    rng = np.random.default_rng(0)
    gradients, value, square, parameters = rng.standard_normal((6, 400)) * 0.01, rng.standard_normal(400), 0.0, []
    for gradient in gradients:
        square = 0.99 * square + 0.01 * gradient**2
        value = (value - 1e-3 * gradient / (np.sqrt(square) + 1e-8)).astype(np.float32).astype(np.float64)
        parameters.append(value)
    history = history_from(gradients, np.stack(parameters))
    found = optimizer_fits.identified(history)
    assert {optimizer._kind(item.rule) for item in found} == {"RMSprop (smoothing 0.99)"}
    assert found[0].rates == pytest.approx((1e-3,) * 5, rel=1e-3)


def shrunk(*, matrices_only, decay=0.1, clip_value=None):
    """What AdamW makes of a matrix and of a norm's weights, which are about 1; weight decay in the first or in both."""
    import torch

    rng = np.random.default_rng(0)
    matrix, norm = torch.nn.Parameter(torch.linspace(-1, 1, 300)), torch.nn.Parameter(torch.ones(100))
    groups = [{"params": [matrix]}, {"params": [norm], **({"weight_decay": 0.0} if matrices_only else {})}]
    adam, after = torch.optim.AdamW(groups, lr=0.01, weight_decay=decay), []
    gradients = rng.standard_normal((6, 400)) * 0.02
    for gradient in gradients:
        matrix.grad, norm.grad = torch.from_numpy(gradient).float().split([300, 100])
        if clip_value:
            torch.nn.utils.clip_grad_value_([matrix, norm], clip_value)
        adam.step()
        after.append(torch.cat([matrix, norm]).detach().numpy().astype(np.float64))
    return replace(history_from(gradients, np.stack(after)), in_matrix=np.arange(400) < 300)


def test_weight_decay_of_matrices_only_is_told_from_that_of_all():
    some, every = (optimizer_fits.identified(shrunk(matrices_only=only))[0] for only in (True, False))
    assert (some.rule.shrinks_matrices_only, every.rule.shrinks_matrices_only) == (True, False)
    assert some.decay == pytest.approx(0.1, abs=5e-3) and every.decay == pytest.approx(0.1, abs=5e-3)
    ((name, _, one, other),) = optimizer._differences(some, every)
    assert name == "weight-decay" and "matrices only" in one and other == every.decay


def test_without_weight_decay_nothing_is_said_of_matrices():
    found = optimizer_fits.identified(shrunk(matrices_only=True, decay=0.0))
    assert found and not any(item.rule.shrinks_matrices_only for item in found)


def test_clipped_elements_are_seen_beside_weight_decay_of_matrices():
    found = optimizer_fits.identified(shrunk(matrices_only=True, clip_value=0.01))
    assert {item.rule.clips for item in found} == {optimizer_fits.ELEMENTS}


@pytest.mark.parametrize("share", [0.1, 0.0])
def test_parameters_averaged_with_those_before_the_step_are_told_from_smaller_steps(share, monkeypatch):
    gradients = np.random.default_rng(0).standard_normal((6, 400)) * 0.02
    right = replace(trained(gradients), step_starts=frozenset({2, 4}))
    rule = optimizer_fits.identified(right)[0].rule
    value, anchor, after = np.linspace(-1, 1, 400), None, []
    for place, (mean, size) in enumerate(optimizer_fits.moments_of(right, rule)):
        anchor = value if place % 2 == 0 else anchor
        # Without an average, a part of the rate does the same to the first update of a step.
        rate = 0.01 if share else 0.009
        value = (1 - share) * (value - rate * mean / (size + rule.epsilon)) + share * anchor
        after.append(value)
    wrong = replace(right, parameters=np.stack(after))
    monkeypatch.setattr(optimizer, "history_of", lambda _side: wrong)
    found = optimizer._pulled_back(SimpleNamespace(a=None, b=None), optimizer_fits.identified(right), "B")
    assert [item.parameters["share"] for item in found] == ([pytest.approx(0.1, abs=1e-3)] if share else [])


def descended(clip, rate=0.01):
    """What gradient descent makes of gradients with norms from 0.4 to 2.4."""
    gradients = np.random.default_rng(0).standard_normal((6, 400)) * 0.02 * np.arange(1, 7)[:, None]
    return optimizer_fits.identified(trained(gradients, "SGD", rate, clip))


@pytest.mark.parametrize(
    ("a", "b", "names"),
    [
        ({"clip": 0.07}, {"clip": None}, ["gradient-clip"]),
        ({"clip": None}, {"clip": None, "rate": 0.02}, ["learning-rate"]),
        ({"clip": 1.0}, {"clip": 1.0, "rate": 0.02}, ["learning-rate"]),  # some gradients are not clipped
    ],
    ids=str,
)
def test_a_clip_of_all_gradients_is_told_from_a_learning_rate(a, b, names):
    alike = optimizer._alike(descended(**a), descended(**b))
    pairs = [(*pair, list(optimizer._differences(*pair))) for pair in alike]
    assert [item[0] for item in min(pairs, key=optimizer.most_alike)[2]] == names
