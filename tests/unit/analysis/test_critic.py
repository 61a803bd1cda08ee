"""Advantages of a critic: which rule each side follows, and when nothing may be said."""

import numpy as np
import pytest

import rldbg
from rldbg.analysis import compare


def write(root, *, gamma=0.99, decay=0.95, place=-1, bootstrap=False, baseline=True, whiten="all", spoil=0.0, kl=1.0):
    """Two steps of samples with values, returns and advantages; the second has rewards of single tokens."""
    rng = np.random.default_rng(0)
    with rldbg.Recorder(root) as recorder:
        for step in range(2):
            rows = []
            for _ in range(8):
                prompt, n = int(rng.integers(2, 5)), int(rng.integers(5, 10))
                values, reward, penalty = rng.normal(size=n), float(rng.normal()), step * rng.normal(size=n) * 0.1
                given, raw, after = -kl * penalty, np.zeros(n), 0.0
                given[place] += reward
                for t in range(n - 1, -1, -1):
                    behind = values[t + 1] if t + 1 < n else values[t] * bootstrap
                    after = given[t] + baseline * (gamma * behind - values[t]) + gamma * decay * after
                    raw[t] = after
                rows.append((prompt, n, reward, values, raw))
            every = np.concatenate([row[4] for row in rows])
            mean, spread = (every.mean(), every.std()) if whiten == "all" else (0.0, every.std() if whiten else 1.0)

            def wide(prompt, part):
                return [*np.zeros(prompt), *part]

            recorder.record(
                "prepared_trajectories",
                step=step,
                samples=[(f"{step}", run) for run in range(8)],
                tokens=[list(range(row[0] + row[1])) for row in rows],
                loss_mask=[[0] * row[0] + [1] * row[1] for row in rows],
                reward=[row[2] for row in rows],
                values=[wide(row[0], row[3]) for row in rows],
                returns=[wide(row[0], row[3] + row[4]) for row in rows],
                advantages=[wide(row[0], (row[4] - mean) / spread + spoil * np.cos(row[3])) for row in rows],
            )
    return rldbg.open(root)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"decay": 1.0}, "lambda is 0.95 in A and 1 in B"),
        ({"gamma": 1.0}, "gamma is 0.99 in A and 1 in B"),
        ({"place": 0}, "the token that gets the reward is the last one in A and the first one in B"),
        ({"bootstrap": True}, "value after the last token is 0 in A and that of the last token in B"),
        ({"baseline": False}, "the baseline is values in A and nothing in B"),
        ({"whiten": "spread"}, "standard deviation of all tokens only in B"),
        ({"whiten": ""}, "none in B"),
        ({"kl": -1.0}, "such as a KL penalty's, are in B A's times -1"),
    ],
)
def test_each_rule_is_named(tmp_path, change, said):
    result = compare(write(tmp_path / "a"), write(tmp_path / "b", **change))
    assert result.first_difference.stage == "advantage"
    assert [said in item.explains for item in result.explanations] == [True], result.explanations


def test_advantages_that_follow_no_rule_are_not_named(tmp_path):
    """Near a rule is not by it."""
    result = compare(write(tmp_path / "a"), write(tmp_path / "b", spoil=0.02))
    assert result.verdict == "different"
    assert not [item for item in result.explanations if item.id in ("advantage-estimation", "token-rewards-scaled")]


@pytest.mark.parametrize(("size", "verdict"), [(1e-5, "equal within noise"), (2e-3, "different")])
def test_advantages_of_a_critic_may_be_off_by_its_rounding(tmp_path, size, verdict):
    """Values are computed by a model, as log probs are."""
    assert compare(write(tmp_path / "a"), write(tmp_path / "b", spoil=size)).verdict == verdict
