import numpy as np
import pytest

from rldbg.analysis.measure import measure, same_bytes
from rldbg.analysis.tolerances import Tolerance, Tolerances
from rldbg.core import UsageError

TIGHT = Tolerance(1e-5, 0.0)


def test_equal_arrays_end_with_equality():
    a = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32)
    found = measure(a, a.copy(), TIGHT)
    assert found.compared == a.size and found.beyond == 0 and found.first is None


@pytest.mark.parametrize("place", [0, 1, 262_143, 262_144, 299_999])
def test_one_element_is_found_at_its_place(place):
    a = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
    b = a.copy()
    b[place] -= 8
    found = measure(a, b, TIGHT)
    assert (found.first, found.worst, found.beyond) == (place, place, 1)
    assert found.max_abs == pytest.approx(8, abs=1e-5)


def test_nan_and_inf():
    a = np.array([np.nan, np.inf, -np.inf, 1.0, np.nan, 2.0])
    b = np.array([np.nan, np.inf, np.inf, np.nan, 3.0, 2.0])
    found = measure(a, b, TIGHT)
    assert (found.nan_a, found.nan_b, found.inf_a, found.inf_b) == (2, 2, 2, 2)
    assert found.beyond == 3 and found.first == 2
    assert measure(a, a.copy(), TIGHT).beyond == 0


def test_masked_elements_do_not_count():
    a, b = np.zeros(10), np.zeros(10)
    b[7] = 5
    assert measure(a, b, TIGHT, valid=np.arange(10) < 7).beyond == 0
    assert measure(a, b, TIGHT, valid=np.arange(10) < 8).first == 7


def test_other_dtypes_of_the_same_values_are_equal():
    a = np.arange(1000, dtype=np.float32)
    assert measure(a, a.astype(np.float64), TIGHT).beyond == 0
    assert not same_bytes(a, a.astype(np.float64))
    assert same_bytes(a[::2], a[::2].copy())


def test_coarser_dtype_decides_and_integers_are_exact():
    tolerances = Tolerances()
    fine = tolerances.of("forward_data", "log_probs", "float32", "float32")
    coarse = tolerances.of("forward_data", "log_probs", "float32", "bfloat16")
    assert fine.atol < 1e-4 < coarse.atol < 0.05
    assert tolerances.of("trajectory", "tokens", "int64", "int32") == Tolerance(0, 0)
    assert Tolerances(atol=0.5).of("loss", "loss", "float32", "float32").atol == 0.5


def test_tolerance_file(tmp_path):
    file = tmp_path / "t.yaml"
    file.write_text("log_probs: {atol: 0.1}\nloss.loss: {atol: 1, rtol: 0}\n")
    tolerances = Tolerances.from_file(file)
    assert tolerances.of("forward_data", "log_probs", "float32", "float32") == Tolerance(0.1, 0.0)
    assert tolerances.of("loss", "loss", "float32", "float32").atol == 1
    for bad in ("[1]", "log_probs: 3", "log_probs: {atol: -1}", "log_probs: {tol: 1}", "a: ["):
        file.write_text(bad)
        with pytest.raises(UsageError):
            Tolerances.from_file(file)


@pytest.mark.parametrize("seed", range(8))
def test_the_count_beyond_tolerance_is_exact_whatever_the_sizes(seed):
    """The short cut over whole chunks decides as the plain formula does, element by element."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 300_000))
    a = (rng.standard_normal(size) * 10.0 ** rng.integers(-6, 6, size)).astype(np.float32)
    noise = rng.standard_normal(size) * 10.0 ** rng.integers(-9, 2) * (rng.random(size) < rng.random())
    b = (a * (1 + noise)).astype(np.float32)
    tolerance = Tolerance(float(rng.choice([0.0, 1e-5, 1e-2])), float(rng.choice([0.0, 1e-6, 1e-3])))
    gap, largest = np.abs(a - b), np.maximum(np.abs(a), np.abs(b))
    beyond = gap > np.float32(tolerance.atol) + np.float32(tolerance.rtol) * largest
    found = measure(a, b, tolerance)
    assert found.beyond == np.count_nonzero(beyond)
    assert found.max_abs == gap.max()
    assert found.first == (int(np.argmax(beyond)) if beyond.any() else None)
    if beyond.any():
        assert gap[found.worst] == gap[beyond].max()
