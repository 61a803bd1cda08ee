"""What no noise explains: rules told by a side's own numbers, passes of the same weights, samples with other tokens."""

import numpy as np
import pytest

from imagined_runs import ImaginedRun
from rldbg.analysis.explain import Evidence
from rldbg.analysis.noise.same_weights import odd_passes
from rldbg.analysis.noise.tensors import TensorHistory
from rldbg.analysis.resampling import _at_least, resampled
from rldbg.analysis.stages import Stage

RIGHT = ImaginedRun()
_RNG = np.random.default_rng(3)


def noisy(size):
    """Every row with noise of its own, as another kernel would give it."""
    return lambda rows, *_: [np.asarray(row) + size * _RNG.standard_normal(len(row)) for row in rows]


def stages(**hooks):
    return [item.stage for item in odd_passes(Evidence(RIGHT.side(), ImaginedRun(**hooks).side(), 0))]


def test_passes_of_the_same_weights_that_agree_on_one_side_only_are_a_fault():
    assert stages(old=noisy(0.05)) == [Stage.OLD_LOG_PROBS]
    assert stages(rollout=noisy(0.05)) == [Stage.TRAJECTORY]


def test_noise_in_all_passes_of_a_side_is_none():
    both = noisy(0.05)
    a, b = (ImaginedRun(old=both, rollout=both).side() for _ in range(2))
    assert list(odd_passes(Evidence(a, b, 0))) == []
    assert stages() == []


def surely_ended(last):
    return lambda rows, *_: [np.append(row[:-1], last) for row in rows]


def test_a_pass_that_is_surer_than_others_of_the_same_weights_has_lost_values():
    """However little the others say: no rounding takes away what other tokens have of a chance."""
    sure = {name: surely_ended(-6e-5) for name in ("old", "new", "rollout")}
    right = ImaginedRun(**sure).side()
    lost, near = (ImaginedRun(**sure | {"old": surely_ended(last)}).side() for last in (0.0, -5.9e-5))
    assert [item.stage for item in odd_passes(Evidence(right, lost, 0))] == [Stage.OLD_LOG_PROBS]
    assert list(odd_passes(Evidence(right, near, 0))) == []
    rounded = {name: surely_ended(-1e-6) for name in sure}
    a, b = (ImaginedRun(**rounded | {"old": surely_ended(last)}).side() for last in (-1e-6, 0.0))
    assert list(odd_passes(Evidence(a, b, 0))) == []


def other_token(rows, *_):
    """The third sample ends in another token."""
    return [np.append(row[:-1], row[-1] + 1) if number == 2 else row for number, row in enumerate(rows)]


def test_a_sample_with_another_token_is_noise_where_log_probs_differ_enough():
    a = RIGHT.side()
    near, same = (ImaginedRun(tokens=other_token, **hooks).side() for hooks in ({"rollout": noisy(0.02)}, {}))
    found = resampled(a, near, [0])
    assert [len(samples) for samples in found.samples.values()] == [1]
    assert "1 of 16 samples have different tokens" in found.findings[0].evidence[0]
    assert not resampled(a, same, [0]).samples  # equal log probs choose equal tokens


def test_more_samples_than_noise_explains_are_a_difference():
    all_other = ImaginedRun(tokens=lambda rows, *_: [np.append(r[:-1], r[-1] + 1) for r in rows], rollout=noisy(1e-4))
    assert not resampled(RIGHT.side(), all_other.side(), [0]).samples


@pytest.mark.parametrize(("count", "expected", "chance"), [(1, 1.0, 0.632), (3, 0.1, 1.55e-4), (1, 0.0, 0.0)])
def test_the_chance_of_so_many_rare_events(count, expected, chance):
    assert _at_least(count, expected) == pytest.approx(chance, rel=1e-2)


def test_one_exploding_update_is_no_yardstick_for_the_others(monkeypatch):
    sizes = {(0, 0, place): size for place, size in enumerate((1.0, 2.0, 1.0, 1000.0))}
    monkeypatch.setattr("rldbg.analysis.noise.tensors.tensor_pair", lambda size, _kind: (np.full(3, size),) * 2)
    monkeypatch.setattr("rldbg.analysis.noise.tensors.give_back", lambda _arrays: None)

    class Block(float):
        a = b = type("Record", (), {"fields": {"gradient": None}})

    history = TensorHistory(gradients={update: Block(size) for update, size in sizes.items()})
    assert list(history.gradient_terms().values()) == [12.0, 12.0, 12.0, 1000.0]
