"""Explanations from recorded numbers alone: the right cause for each spoiled run, none where nothing fits."""

import numpy as np
import pytest

from rldbg.algorithms import grpo_advantages
from rldbg.analysis import compare
from rldbg.cli.application import run
from synthetic_steps import PER_GROUP, PROMPT, step_data, write


def explained(tmp_path, a, b):
    result = compare(write(tmp_path / "a", a), write(tmp_path / "b", b))
    stage = result.first_difference.stage.value if result.first_difference else None
    return stage, [item.id for item in result.explanations], result


def spoiled(**changes):
    data = step_data()
    for name, change in changes.items():
        data[name] = change(data[name])
    return data


def test_equal_runs_have_nothing_to_explain(tmp_path):
    assert explained(tmp_path, step_data(), step_data())[:2] == (None, [])


@pytest.mark.parametrize(
    "cause, stage, changes",
    [
        ("reward-affine", "reward", {"rewards": lambda r: r * 2 + 1}),
        ("shift-by-one", "old_log_probs", {"old": lambda v: np.roll(v, 1, axis=1)}),
        ("zero-filled", "trajectory", {"rollout": lambda v: np.where(np.arange(v.shape[1]) < 3, 0, v)}),
        ("mask-off-at-end", "trajectory", {"mask": lambda m: np.concatenate([m[:, :-1], 0 * m[:, -1:]], 1)}),
        ("prompt-in-mask", "trajectory", {"mask": np.ones_like}),
    ],
)
def test_causes_in_rollout_and_values(tmp_path, cause, stage, changes):
    found_stage, causes, _ = explained(tmp_path, step_data(), spoiled(**changes))
    assert found_stage == stage and causes[:1] == [cause]


def drawn(seed):
    """Responses drawn from one fixed table of probabilities: log probs depend on nothing but the token."""
    log_p = np.log(np.arange(1, 5) / 10)
    data = step_data()
    choices = np.random.default_rng(seed).choice(4, size=data["old"].shape, p=np.exp(log_p))
    data["tokens"][:, PROMPT:] = choices + 10
    for name in ("rollout", "old", "new"):
        data[name] = log_p[choices].astype(np.float32)
    return data


def test_other_draws_from_the_same_probabilities_are_another_seed(tmp_path):
    assert explained(tmp_path, drawn(1), drawn(2))[:2] == ("trajectory", ["seed"])


def test_other_tokens_beside_the_same_log_probs_were_tokenised_again(tmp_path):
    other = drawn(1)
    other["tokens"][:, PROMPT + 4] += 20
    assert explained(tmp_path, drawn(1), other)[1][:1] == ["retokenised"]


def test_temperature_is_fitted(tmp_path):
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((12, 10, 50))

    def at(temperature):
        scaled = logits / temperature
        log_p = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
        data = step_data()
        data["new"] = data["old"] = log_p[..., 0].astype(np.float32)
        data["entropy"] = -(np.exp(log_p) * log_p).sum(-1).astype(np.float32)
        return data

    stage, causes, result = explained(tmp_path, at(1.0), at(0.8))
    assert stage == "old_log_probs" and causes == ["temperature"]
    assert result.explanations[0].parameters["temperature_ratio"] == pytest.approx(0.8, abs=0.02)


def test_rounded_values_name_the_precision(tmp_path):
    import torch

    def rounded(values):
        return torch.from_numpy(values).to(torch.bfloat16).float().numpy()

    stage, causes, _ = explained(tmp_path, step_data(), spoiled(new=rounded))
    assert stage == "forward" and causes[:1] == ["precision"]


def test_advantages_without_standard_deviation(tmp_path):
    other = step_data()
    groups = np.repeat(np.arange(3), PER_GROUP)
    plain = grpo_advantages(other["rewards"], groups, scale_by_std=False)
    other["advantages"] = plain[:, None].repeat(other["old"].shape[1], 1)
    stage, causes, result = explained(tmp_path, step_data(), other)
    assert stage == "advantage" and causes == ["advantage-normalisation"]
    assert result.explanations[0].parameters["b"] == "group mean only"


def test_a_drifted_replica_is_named(tmp_path):
    other = step_data()
    other["replica"] = other["parameter"] + 1e-3
    stage, causes, result = explained(tmp_path, step_data(), other)
    assert stage == "parameter" and causes == ["replica-drift"]
    assert result.explanations[0].parameters["side"] == "B"


def test_no_hypothesis_is_forced_on_noise(tmp_path):
    noise = np.random.default_rng(3).standard_normal((12, 10)).astype(np.float32)
    stage, causes, _ = explained(tmp_path, step_data(), spoiled(old=lambda v: v + 0.01 * noise))
    assert stage == "old_log_probs" and causes == []


def test_where_nothing_fits_the_nearest_is_shown_and_not_called_the_cause(tmp_path, capsys):
    noise = np.random.default_rng(3).standard_normal((12, 10)).astype(np.float32)
    stage, causes, result = explained(tmp_path, step_data(), spoiled(old=lambda v: 1.5 * v + 0.02 * noise))
    assert stage == "old_log_probs" and causes == []
    near = result.nearest[0]
    assert near.id == "scaled" and near.parameters["factor"] == pytest.approx(1.5, abs=0.05)
    assert 0.8 < near.share < 1 and near.residual > near.noise
    body = result.to_dict()
    assert body["explanations"] == [] and body["nearest"][0]["id"] == "scaled"
    run(["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    text = capsys.readouterr().out
    assert "cause unknown" in text and "nearest: scaled, accounts for 9" in text and "because" not in text


def test_what_fits_leaves_no_nearest(tmp_path):
    _, causes, result = explained(tmp_path, step_data(), spoiled(old=lambda v: 1.5 * v))
    assert causes[0] == "scaled" and result.nearest == []


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["old", "new", "rollout", "rewards", "advantages"])
def test_numbers_that_are_not_finite_fit_nothing_else(tmp_path, name, odd, recwarn):
    def overflowed(values):
        values = values.copy()
        values[: len(values) // 2] = odd
        return values

    _, causes, result = explained(tmp_path, step_data(), spoiled(**{name: overflowed}))
    assert result.verdict == "different" and set(causes) <= {"non-finite"}
    assert [str(item.message) for item in recwarn if issubclass(item.category, RuntimeWarning)] == []


def test_the_form_of_a_loss_is_told_where_most_tokens_are_clipped(tmp_path):
    data = step_data(0)
    data["advantages"][:] = np.abs(data["advantages"]) + 0.5
    data["old"] = data["new"] - np.linspace(-0.05, 1.5, data["new"].shape[1], dtype=np.float32)
    ratio = np.exp(data["new"] - data["old"])
    clipped = data | {"loss_scale": np.minimum(ratio, 1.2) / ratio}
    result = compare(write(tmp_path / "a", clipped), write(tmp_path / "b", data | {"loss_scale": data["new"]}))
    told = [explanation.explains for explanation in result.explanations]
    assert told == ["a token's loss is -ratio * advantage in A and -ratio * log prob * advantage in B"]
