"""check on recordings of a critic: advantages of each token, values and returns; and losses that clip twice."""

import numpy as np
import pytest

import rldbg
from rldbg.analysis import check
from synthetic_steps import PROMPT, RESPONSE, step_data, write

CRITIC = "advantages-follow-values"


def estimates(data):
    """GAE with one reward at the end: a return is value plus advantage, advantages are whitened."""
    rng, count = np.random.default_rng(3), len(data["samples"])
    values = rng.normal(size=(count, RESPONSE))
    returns = values + rng.normal(size=(count, RESPONSE)) + data["rewards"][:, None]
    raw = returns - values
    return {"values": values, "returns": returns, "advantages": (raw - raw.mean()) / raw.std()}


def recorded(folder, spoil=lambda of: of):
    data = step_data(0)
    of = spoil(estimates(data))
    data["advantages"] = of["advantages"].astype(np.float32)
    write(folder, data)
    zeros = np.zeros((len(data["samples"]), PROMPT), np.float32)
    rows = {name: list(np.concatenate([zeros, value], 1).astype(np.float32)) for name, value in of.items()}
    rest = {"tokens": list(data["tokens"]), "loss_mask": list(data["mask"]), "reward": data["rewards"]}
    with rldbg.Recorder(folder) as recorder:
        recorder.record("prepared_trajectories", step=0, samples=data["samples"], **rest, **rows)
    return rldbg.open(folder)


def test_advantages_of_a_critic_are_held_against_its_values_and_not_against_rewards(tmp_path):
    report = check(recorded(tmp_path))
    assert report.findings == ()
    assert CRITIC in report.passed
    assert "differ from token to token" in report.not_applicable["advantages-follow-rewards"]


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda of: of | {"advantages": -of["advantages"]}, "the sign of value - return"),
        (lambda of: of | {"values": np.roll(of["values"], 1, axis=1)}, "away from one shift and one scale"),
    ],
)
def test_advantages_that_do_not_follow_are_named(tmp_path, spoil, word):
    found = check(recorded(tmp_path, spoil), only=[CRITIC]).findings
    assert word in " ".join(found[0].evidence)


def twice_clipped(bounds):
    """Ratios far above 1 for negative advantages, each held at its bound."""
    data = step_data(0)
    data["advantages"][:] = -1.0
    data["old"] = data["new"] - np.linspace(0.5, 1.5, RESPONSE, dtype=np.float32)
    data["loss_scale"] = bounds / np.exp(data["new"] - data["old"])
    return data


def test_a_clip_for_negative_advantages_is_no_fault_and_any_other_loss_below_is(tmp_path):
    one, several = np.full(RESPONSE, 1.3), np.linspace(1.1, 1.5, RESPONSE)
    only = ["loss-follows-inputs"]
    assert check(write(tmp_path / "one", twice_clipped(one)), only=only).findings == ()
    found = check(write(tmp_path / "several", twice_clipped(several)), only=only).findings
    assert found[0].evidence[0] == "elementwise_loss is below -ratio * advantage"


@pytest.mark.parametrize(("form", "count"), [("two-sided ratio", 0), ("ratio", 1)])
def test_one_token_that_is_held_is_a_clip_if_the_framework_says_so(tmp_path, form, count):
    data = twice_clipped(np.full(RESPONSE, 1.0))
    data["old"], data["loss_scale"] = data["new"].copy(), np.ones_like(data["new"])
    data["old"][0, -1] -= 1.0
    data["loss_scale"][0, -1] = 1.3 / np.exp(1.0)
    data["form"] = form
    assert len(check(write(tmp_path, data), only=["loss-follows-inputs"]).findings) == count


@pytest.mark.parametrize(("form", "count"), [("two-sided ratio", 0), ("ratio", 1)])
def test_the_first_clip_on_negative_advantages_is_a_fault_unless_stated(tmp_path, form, count):
    """Both signs are held at 1.3: the smaller of clipped and unclipped was not taken."""
    data = twice_clipped(np.full(RESPONSE, 1.3))
    data["advantages"][::2] = 1.0
    data["form"] = form
    assert len(check(write(tmp_path, data), only=["loss-follows-inputs"]).findings) == count
