"""Under noise of a hundredth, a bug of a thousandth is found by its shape; noise alone is not, as often as stated."""

import numpy as np
import pytest

import rldbg
from rldbg.analysis import compare
from rldbg.analysis.layer_structure import shapes_of_layers
from rldbg.analysis.structure import FALSE_ALARMS, _Row, _tests
from rldbg.analysis.tokens import SampleTokens
from rldbg.cli.application import run
from rldbg.core import SampleId
from rldbg.recording import RecordKey

GROUPS, PER_GROUP, TOKENS, NOISE = 64, 2, 60, 1e-2


def rows(seed, change=lambda row, rng: 0.0):
    """Noise that repeats where samples of a group share their first tokens, plus what a bug adds."""
    rng = np.random.default_rng(seed)
    found = []
    for group in range(GROUPS):
        shared = NOISE * rng.standard_normal(10)
        for number in range(PER_GROUP):
            length = TOKENS + 4 * (group % 6)
            tokens = np.concatenate([[90, 91], rng.integers(0, 12, length)])
            mask = np.r_[0, 0, np.ones(length, int)]
            mask[30:34] = 0
            positions = np.flatnonzero(mask)
            # Heavy tails, as the last bits of a bfloat16 have.
            gap = NOISE * rng.standard_t(3, len(positions))
            gap[: len(shared)] = shared
            sample = SampleTokens(SampleId(f"g{group}", number), tokens, mask, float(rng.integers(0, 2)))
            # Ranks share groups, micro-batches hold whole ones.
            row = _Row(sample, RecordKey("forward_data", 0, rank=number % 2, micro=group % 4), positions, gap)
            found.append(row._replace(gap=gap + change(row, rng)))
    return found


SHAPES = {
    "bias": lambda row, _: 1e-3,
    "grows with the position": lambda row, _: 1e-4 * (row.positions - row.positions.mean()),
    "differs after the first turn": lambda row, _: 3e-3 * (row.positions > 33),
    "depends on the reward": lambda row, _: 4e-3 * row.sample.reward,
    "grows with the length": lambda row, _: 2e-4 * (len(row.positions) - TOKENS),
    "is different in rank 1": lambda row, _: 3e-3 * row.source.rank,
    "is different in micro-batch 2": lambda row, _: 4e-3 * (row.source.micro == 2),
    "is different in sample of each group 1": lambda row, _: 3e-3 * row.sample.sample.run_id,
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


def norms(seed, change=lambda layer: 0.0, drift=0.0):
    """Squared norms of gradients of twelve layers in forty updates, of two sides that differ by noise."""
    rng = np.random.default_rng(seed)
    lasting = {layer: drift * rng.standard_normal() for layer in range(12)}
    ratio = {layer: 1 + NOISE * rng.standard_normal(40) + lasting[layer] + change(layer) for layer in range(12)}
    return {
        f"model.layers.{layer}": {(update, 0, 0): np.array([1.0, ratio[layer][update] ** 2]) for update in range(40)}
        for layer in range(12)
    }


@pytest.mark.parametrize(
    ("shape", "change"),
    [
        ("is different in model.layers.7", lambda layer: 1e-2 * (layer == 7)),
        ("is larger or smaller in all layers", lambda _: 3e-3),
    ],
)
def test_a_layer_whose_gradients_are_scaled_by_less_than_the_noise_is_found(shape, change):
    tests = {name: chance for name, _, chance in shapes_of_layers(norms(1, change))}
    assert tests[shape] * len(tests) <= FALSE_ALARMS
    assert min(tests, key=tests.get) == shape


def test_noise_of_layers_alarms_no_more_often_than_stated():
    """As above: 2 of 40 are expected at 5 %."""
    found = [[chance for *_, chance in shapes_of_layers(norms(seed))] for seed in range(40)]
    assert sum(min(chances) * len(chances) <= 0.05 for chances in found) <= 8


def with_gradients(root, seed, factor=1.0):
    """Sixteen updates of four layers: gradients with a noise of a hundredth, those of layer 2 times a factor."""
    rng = np.random.default_rng(seed)
    with rldbg.Recorder(root) as recorder:
        for step in range(24):
            for layer in range(4):
                exact = np.random.default_rng([step, layer]).standard_normal(8)
                values = exact * (1 + NOISE * rng.standard_normal(8)) * (factor if layer == 2 else 1.0)
                name = f"model.layers.{layer}.mlp.weight"
                recorder.record("gradient", step=step, param_name=name, gradient=values.astype(np.float32))
    return rldbg.open(root)


def test_beside_a_repetition_a_layer_with_scaled_gradients_is_named(tmp_path):
    a, again = with_gradients(tmp_path / "a", 0), with_gradients(tmp_path / "again", 1)
    assert compare(a, with_gradients(tmp_path / "clean", 2), repetitions=[again]).structures == []
    bug = compare(a, with_gradients(tmp_path / "bug", 3, factor=1.03), repetitions=[again])
    assert [(item.quantity, item.shape) for item in bug.structures] == [("gradient", "is different in model.layers.2")]
    assert bug.structures[0].effect == pytest.approx(0.03, rel=0.5)


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
