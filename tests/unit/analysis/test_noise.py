"""Rounding amplified by optimizers is not a difference; a bug under the same noise is."""

from functools import cache

import numpy as np
import pytest
import torch

from rldbg.analysis import compare
from rldbg.analysis.noise.precision import coarse_dtype, computing_roundoff
from rldbg.analysis.noise.sensitivity import OptimizerSensitivity
from rldbg.analysis.noise.tensors import GRADIENT, PARAMETER, TensorHistory, step_sizes_of, tensor_histories
from rldbg.analysis.side import Side
from rldbg.analysis.whole import Block
from rldbg.cli.application import run
from rldbg.recording import Record, RecordKey
from training_pairs import Training, record_training

ADAM, SGD = Training(), Training(optimizer="sgd", rate=0.1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Recordings of trainings, each made once."""
    folder = tmp_path_factory.mktemp("trainings")

    @cache
    def made(training):
        return record_training(folder / str(made.cache_info().misses), training)

    return made


@pytest.fixture
def judged(recorded):
    return lambda one, other: compare(recorded(one), recorded(other))


@pytest.mark.parametrize("rounding", [0.0, 1e-7, 1e-6, 1e-5])
@pytest.mark.parametrize("clean", [ADAM, ADAM.but(betas=(0.9, 0.95), decay=0.01), SGD], ids=["adam", "adamw", "sgd"])
@pytest.mark.parametrize("seed", [0, 1])
def test_rounding_is_never_a_difference(judged, clean, rounding, seed):
    one = clean.but(rounding=rounding, seed=seed, updates=12)
    result = judged(one, one.but(micro=3, noise_seed=1))
    assert result.verdict in ("equal within noise", "drift"), result.first_difference


def test_equal_bits_are_equal(recorded, tmp_path):
    assert compare(recorded(ADAM), record_training(tmp_path, ADAM)).verdict == "equal"


BUGS = {
    "rate": (ADAM, {"rate": 3.03e-3}),
    "betas": (ADAM, {"betas": (0.9, 0.99)}),
    "beta1": (ADAM, {"betas": (0.8, 0.999)}),
    "eps": (ADAM, {"eps": 1e-3}),
    "bias correction": (ADAM, {"bias_correction": False}),
    "weight decay": (ADAM, {"decay": 0.01}),
    "skipped update": (ADAM, {"skips": 2}),
    "sgd rate": (SGD, {"rate": 0.101}),
    "sgd weight decay": (SGD, {"decay": 0.001}),
    "clip": (SGD.but(clip=0.02), {"clip": None}),
}


@pytest.mark.parametrize("rounding", [0.0, 1e-6])
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_in_the_optimizer_is_found_in_the_same_noise(judged, name, rounding):
    clean, bug = BUGS[name]
    one = clean.but(rounding=rounding)
    result = judged(one, one.but(**bug, micro=3, noise_seed=1))
    assert result.verdict == "different"
    assert result.first_difference.stage == "parameter"


@pytest.mark.parametrize("clean", [ADAM, SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize(("dtype", "seed"), [*((torch.bfloat16, seed) for seed in range(4)), (torch.float16, 0)])
def test_two_kernels_of_a_coarse_dtype_are_no_difference_over_many_updates(judged, clean, dtype, seed):
    one = clean.but(dtype=dtype, seed=seed, updates=12)
    result = judged(one, one.but(noise_seed=1, micro=3))
    assert result.verdict == "drift", result.first_difference


@pytest.mark.parametrize(("dtype", "rate"), [(torch.bfloat16, 6e-3), (torch.float16, 3.6e-3)])
def test_a_coarse_dtype_on_one_side_is_a_difference_and_so_is_a_bug_on_top_of_it(judged, dtype, rate):
    coarse = ADAM.but(dtype=dtype)
    assert judged(ADAM, coarse).first_difference.stage == "forward"
    bug = judged(coarse, coarse.but(noise_seed=1, rate=rate))
    assert bug.first_difference.stage == "parameter" and bug.first_difference.step == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_roundoff_of_a_coarse_dtype_is_read_from_gradients(recorded, dtype):
    sides = [Side(recorded(ADAM.but(dtype=dtype)), name) for name in ("A", "B")]
    found = computing_roundoff(tensor_histories(*sides, range(8)))
    assert found == (0.0 if dtype is torch.float32 else torch.finfo(dtype).eps / 2)


@pytest.mark.parametrize("parts", [1, 2, 16, 64])
def test_sums_of_coarse_products_are_told_from_those_of_float32(parts):
    numbers = np.random.default_rng(parts)
    terms = numbers.standard_normal((parts, 4000)).astype(np.float32)
    assert coarse_dtype(terms.sum(0)) == ""
    coarse = (terms.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert coarse_dtype(coarse.sum(0)) == "bfloat16"
    assert coarse_dtype(coarse.sum(0)[:10]) is None
    half = coarse_dtype(terms.astype(np.float16).astype(np.float32).sum(0))
    assert half == "float16" if parts == 1 else half in ("float16", "bfloat16")


@pytest.mark.parametrize("parts", [2, 16, 64])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_several_passes_are_judged_by_their_own_dtype(parts, dtype):
    numbers = np.random.default_rng(parts)
    histories = []
    for _tensor in range(4):
        # As gradients are: sizes over many powers of two, the loss scaled by 1024 so that few are lost.
        terms = (numbers.standard_normal((parts, 2000)) * np.exp(2 * numbers.standard_normal(2000)) * 1e-4).astype("f4")
        made = TensorHistory()
        for step in range(3):
            kept = torch.from_numpy(terms * 1024).to(getattr(torch, dtype)).float() / 1024
            record = Record(RecordKey(GRADIENT, step), {GRADIENT: kept.sum(0).numpy()})
            made.gradients[step, 0, 0] = Block(record, record, None, None)
        histories.append(made)
    assert computing_roundoff(histories) == torch.finfo(getattr(torch, dtype)).eps / 2


def test_equal_gradients_allow_nothing():
    sensitivity = OptimizerSensitivity()
    gradient = np.asarray([0.0, 1e-9, 1.0])
    for _ in range(3):
        sensitivity.see(gradient, gradient)
    assert sensitivity.relative().tolist() == [0, 0, 0]


def test_the_first_step_is_as_long_as_elements_went_that_turned():
    def history(first, second):
        made = TensorHistory()
        for number, (gradients, parameters) in enumerate((first, second)):
            for kind, of_kind, values in (
                (GRADIENT, made.gradients, gradients),
                (PARAMETER, made.parameters, parameters),
            ):
                of_kind[number, 0, 0] = block(kind, *values)
        return made

    def block(kind, *values):
        key = RecordKey(kind, 0)
        return Block(*(Record(key, {kind: np.asarray(value)}) for value in values), None, None)

    turned = [([1e-6, 1.0], [-1e-6, 1.0]), ([0.003, -0.003], [-0.003, -0.003])]
    later = [([1e-6, 1.0], [1e-6, 1.0]), ([0.003, -0.005], [-0.003, -0.005])]
    sizes = step_sizes_of([history(turned, later)])
    assert sizes[0, 0, 0] == pytest.approx(0.003, rel=0.02) and sizes[1, 0, 0] == pytest.approx(0.002)


def test_only_elements_of_the_size_of_their_difference_may_turn_around():
    sensitivity = OptimizerSensitivity()
    sensitivity.see(np.asarray([1e-9, 1e-3, 0.0]), np.asarray([-1e-9, 1e-3 + 1e-9, 1e-9]))
    turned, steady, appeared = sensitivity.relative()
    assert turned == appeared == 2 and 0 < steady < 1e-5


def test_a_repetition_measures_the_noise(tmp_path):
    coarse = ADAM.but(rounding=1e-3)
    a, again, b, bug = (
        record_training(tmp_path / name, training)
        for name, training in {
            "a": coarse,
            "again": coarse.but(noise_seed=1),
            "b": coarse.but(noise_seed=2),
            "bug": coarse.but(noise_seed=2, rate=3.3e-3),
        }.items()
    )
    assert compare(a, b).verdict == "different"
    assert compare(a, b, repetitions=[again]).verdict == "drift"
    assert run(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert run(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--noise", str(tmp_path / "again")]) == 0
    found = compare(a, bug, repetitions=[again])
    assert found.verdict == "different" and found.first_difference.stage == "parameter"


def test_a_lone_element_is_not_excused_by_many_small_ones(tmp_path):
    a, again, b = (
        record_training(tmp_path / str(seed), ADAM.but(rounding=1e-3, noise_seed=seed, updates=2, spike=seed == 2))
        for seed in range(3)
    )
    assert compare(a, b, repetitions=[again]).first_difference.stage == "gradient"


def test_what_was_not_recorded_is_named_where_it_would_tell(judged):
    one = ADAM.but(rounding=1e-4, tensors=False)
    for other, verdict in ((one.but(noise_seed=1), "drift"), (one.but(rate=0.1), "different")):
        result = judged(one, other)
        assert result.verdict == verdict
        (finding,) = [item for item in result.findings if item.id == "noise-unknown"]
        assert "gradient, param" in finding.evidence[0] and any("--noise" in text for text in finding.fix)
