"""What one pass may round: measured by how sensitive the log probs of this very training are to its parameters."""

import numpy as np
import pytest

import rldbg
from rldbg.analysis import compare
from rldbg.analysis.tolerances import Tolerances

SAMPLES = [("g", number) for number in range(4)]
TOKENS = 5


def recorded(folder, *, moves, first_pass=0.0, later=0.0, turned=False, last=0.0):
    """Two steps of two epochs. `moves` is how far an update moves log probs; the others are planted differences.

    Gradients are all rounding: where they are `turned`, the optimizer goes the other way. `last` is added to a single
    parameter after the last update.
    """
    numbers = np.random.default_rng(0)
    log_probs = -numbers.uniform(1, 12, (4, TOKENS)).astype(np.float32)
    weights = numbers.standard_normal(2000).astype(np.float32)
    gradient = numbers.standard_normal(2000).astype(np.float32) * np.float32(-1e-9 if turned else 1e-9)
    mask = np.ones((4, TOKENS), np.int64)
    noise = numbers.choice([-1, 1], (4, TOKENS)).astype(np.float32)
    with rldbg.Recorder(folder, parameter_patterns=[".*"]) as recorder:
        updates = 0
        for step in range(2):
            gap = noise * np.float32(later if step else first_pass)
            old = log_probs + moves * updates + gap
            recorder.record("old_log_probs", step=step, samples=SAMPLES, old_log_probs=old)
            for epoch in range(2):
                row = log_probs + moves * updates + gap
                values = {"log_probs": row.astype(np.float32), "entropy": np.abs(row), "response_mask": mask}
                recorder.record("forward_data", step=step, epoch=epoch, samples=SAMPLES, **values)
                recorder.record("gradient", step=step, epoch=epoch, name="w", gradient=gradient)
                updates += 1
                moved = weights - np.float32(1e-3) * updates * np.sign(gradient)
                moved[7] += np.float32(last if updates == 4 else 0)
                recorder.record("param", step=step, epoch=epoch, name="w", param=moved)
            recorder.end_step(step)
    return rldbg.open(folder)


def judged(tmp_path, moves, **planted):
    return compare(recorded(tmp_path / "a", moves=moves), recorded(tmp_path / "b", moves=moves, **planted))


def test_what_a_sure_model_makes_of_rounding_is_no_difference(tmp_path):
    """3e-5 is beyond the tables' 1.2e-5 and within what parameters rounded to float32 may do to these log probs."""
    assert judged(tmp_path, moves=1.0, first_pass=3e-5, later=3e-5).verdict == "drift"


@pytest.mark.parametrize(("moves", "gap"), [(1e-3, 3e-4), (1.0, 2e-2)])
def test_what_no_rounding_explains_is_a_difference(tmp_path, moves, gap):
    result = judged(tmp_path, moves=moves, first_pass=gap, later=gap)
    assert result.verdict == "different" and result.first_difference.stage == "old_log_probs"


def test_models_that_are_far_apart_are_not_judged_but_rewards_are():
    tolerances = Tolerances().after({(0, 0, 0): 1.0 / 200})
    before, after = (tolerances.at(step, 0, 0) for step in (0, 1))
    assert before.of("forward_data", "log_probs", "float32", "float32").atol < 1e-4
    assert after.knows_nothing and after.of("forward_data", "log_probs", "float32", "float32").atol == float("inf")
    assert after.of("trajectory", "reward", "float32", "float32").atol < 1e-5


@pytest.mark.parametrize(
    ("last", "verdict"), [(0.0, "drift"), (float("nan"), "different"), (float("inf"), "different")]
)
def test_a_number_that_is_not_finite_is_told_however_far_apart_models_are(tmp_path, last, verdict):
    result = judged(tmp_path, moves=1.0, turned=True, last=last)
    assert result.verdict == verdict and any(level.hides_all for level in result.noise)


def one_update_per_step(folder, *, apart, tokens):
    """Two steps over different samples: nothing says how sensitive log probs are. In the second, some are apart."""
    numbers = np.random.default_rng(0)
    weights, gradient = (numbers.standard_normal(2000).astype(np.float32) for _ in range(2))
    with rldbg.Recorder(folder, parameter_patterns=[".*"]) as recorder:
        for step in range(2):
            samples = [(f"{step}-{number}", 0) for number in range(20)]
            log_probs = -numbers.uniform(1, 5, (20, 10)).astype(np.float32)
            if step:
                log_probs.flat[:tokens] += np.float32(apart)
            fields = {"log_probs": log_probs, "response_mask": np.ones((20, 10), np.int64)}
            recorder.record("forward_data", step=step, samples=samples, **fields)
            # A gap of 1e-7 of the parameters' size, which the optimizer made of rounding.
            gap = 1e-7 * weights * bool(apart)
            recorder.record("gradient", step=step, name="w", gradient=gradient + np.float32(1e-6 * bool(apart)))
            recorder.record("param", step=step, name="w", param=(weights + gap).astype(np.float32))
    return rldbg.open(folder)


@pytest.mark.parametrize(
    ("apart", "tokens", "verdict"), [(1e-4, 2, "drift"), (1e-4, 40, "different"), (1e-2, 2, "different")]
)
def test_a_rare_sensitive_token_is_noise_where_sensitivity_is_not_known(tmp_path, apart, tokens, verdict):
    clean = one_update_per_step(tmp_path / "a", apart=0.0, tokens=0)
    result = compare(clean, one_update_per_step(tmp_path / "b", apart=apart, tokens=tokens))
    assert result.verdict == verdict, (result.first_difference, result.noise)
