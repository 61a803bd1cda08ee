"""Under noise of a hundredth, a bug of a thousandth is found by its shape; noise alone is not, as often as stated."""

import numpy as np
import pytest

import rldbg
from rldbg.analysis import compare
from rldbg.analysis.structure import FALSE_ALARMS, _Row, _tests
from rldbg.analysis.tokens import SampleTokens
from rldbg.cli.application import run
from rldbg.core import SampleId

GROUPS, PER_GROUP, TOKENS, NOISE = 48, 2, 60, 1e-2


def rows(seed, change=lambda row, rng: 0.0):
    """Noise that repeats where samples of a group share their first tokens, plus what a bug adds."""
    rng = np.random.default_rng(seed)
    found = []
    for group in range(GROUPS):
        shared = NOISE * rng.standard_normal(10)
        for number in range(PER_GROUP):
            tokens = np.concatenate([[90, 91], rng.integers(0, 12, TOKENS)])
            mask = np.r_[0, 0, np.ones(TOKENS, int)]
            mask[30:34] = 0
            positions = np.flatnonzero(mask)
            # Heavy tails, as the last bits of a bfloat16 have.
            gap = NOISE * rng.standard_t(3, len(positions))
            gap[: len(shared)] = shared
            sample = SampleTokens(SampleId(f"g{group}", number), tokens, mask, float(rng.integers(0, 2)))
            row = _Row(sample, number % 2, positions, gap)
            found.append(row._replace(gap=gap + change(row, rng)))
    return found


SHAPES = {
    "bias": lambda row, _: 1e-3,
    "grows with the position": lambda row, _: 1e-4 * (row.positions - row.positions.mean()),
    "differs after the first turn": lambda row, _: 3e-3 * (row.positions > 33),
    "depends on the reward": lambda row, _: 4e-3 * row.sample.reward,
    "depends on the rank": lambda row, _: 3e-3 * row.rank,
    "is different at token 7": lambda row, _: 1e-2 * (row.sample.tokens[row.positions] == 7),
}


def smallest(found):
    tests = list(_tests(found))
    return min((chance * len(tests), shape) for shape, _, chance in tests)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bug_of_a_tenth_of_the_noise_is_found_by_its_shape(shape):
    tests = {name: chance for name, _, chance in _tests(rows(1, SHAPES[shape]))}
    assert tests[shape] * len(tests) <= FALSE_ALARMS


def test_noise_alone_alarms_no_more_often_than_stated():
    """Of 40 clean comparisons at a rate of 5 %, 2 are expected; more than 8 have a chance below 1 in 1,000."""
    alarms = sum(smallest(rows(seed))[0] <= 0.05 for seed in range(40))
    assert alarms <= 8


def recorded(root, seed, bias=0.0):
    """One pass of 48 prompts: log probs that are the same but for a noise of a hundredth, and a bias."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    samples = [(f"g{row // 2}", row % 2) for row in range(96)]
    tokens = np.concatenate([fixed.integers(50, 90, (96, 2)), fixed.integers(0, 12, (96, 30))], 1)
    mask = np.repeat([[0, 1]], 96, 0).repeat([2, 30], 1)
    log_probs = -fixed.random((96, 30)) - 0.1
    log_probs = (log_probs + (NOISE * rng.standard_normal((96, 30)) + bias if seed else 0.0)).astype(np.float32)
    with rldbg.Recorder(root) as recorder:
        recorder.record("trajectory", step=0, samples=samples, tokens=tokens, loss_mask=mask, reward=np.zeros(96))
        ones = np.ones_like(log_probs)
        fields = {"log_probs": log_probs, "entropy": ones, "response_mask": ones}
        recorder.record("forward_data", step=0, samples=samples, **fields)
    return rldbg.open(root)


def test_beside_a_repetition_a_bias_of_a_tenth_of_the_noise_is_different(tmp_path, capsys):
    a, again = recorded(tmp_path / "a", 0), recorded(tmp_path / "again", 1)
    clean = compare(a, recorded(tmp_path / "clean", 2), repetitions=[again])
    assert clean.verdict in ("equal within noise", "drift") and clean.structures == []
    (numbers,) = clean.noise_statistics
    assert numbers.quantity == "log_probs" and numbers.median_abs == pytest.approx(0.67 * NOISE, rel=0.1)
    bug = compare(a, recorded(tmp_path / "bug", 3, bias=1e-3), repetitions=[again])
    assert bug.verdict == "different" and [item.shape for item in bug.structures] == ["bias"]
    assert bug.to_dict()["structures"][0]["effect"] == pytest.approx(1e-3, rel=0.6)
    assert run(["compare", *(str(tmp_path / name) for name in ("a", "bug")), "--noise", str(tmp_path / "again")]) == 1
    assert "not shaped like noise: log_probs: bias" in capsys.readouterr().out
