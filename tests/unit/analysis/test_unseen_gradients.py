"""Parameters without recorded gradients: rounding has no shape, faults of an optimizer have."""

import shutil

import pytest

import rldbg
from rldbg.analysis import compare
from training_pairs import Training, record_training

ADAM, SGD = Training(), Training(optimizer="sgd", rate=0.1)


@pytest.fixture
def judged(tmp_path):
    def compared(*runs):
        for number, run in enumerate(runs):
            record_training(tmp_path / str(number), run)
            for folder in (tmp_path / str(number)).rglob("gradient"):
                shutil.rmtree(folder)
        sides = [rldbg.open(tmp_path / str(number)) for number in range(2)]
        assert all("gradient" not in side.kinds() and "param" in side.kinds() for side in sides)
        return compare(*sides)

    return compared


@pytest.mark.parametrize("optimizer", [ADAM, SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize("rounding", [1e-6, 1e-4, 1e-2])
def test_rounding_of_gradients_is_no_difference(judged, optimizer, rounding):
    one = optimizer.but(rounding=rounding)
    found = judged(one, one.but(noise_seed=1))
    assert found.verdict in ("equal within noise", "drift"), found.first_difference
    if found.verdict == "drift":
        assert any(finding.id == "noise-unknown" for finding in found.findings)


FAULTS = {
    "learning rate": (ADAM, {"rate": 3.3e-3}),
    "learning rate of SGD": (SGD, {"rate": 0.11}),
    "decay": (ADAM, {"decay": 0.1}),
    "bias correction": (ADAM, {"bias_correction": False}),
    "skipped update": (ADAM, {"skips": 3}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_optimizer_are_told_from_rounding(judged, fault):
    one, changes = FAULTS[fault]
    found = judged(one.but(rounding=1e-6), one.but(rounding=1e-6, noise_seed=1, **changes))
    assert found.verdict == "different" and found.first_difference.stage == "parameter"
