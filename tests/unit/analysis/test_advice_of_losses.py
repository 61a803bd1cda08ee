"""Advice on losses that differ: its own where they differ first, else the stage to look at."""

import numpy as np

import rldbg


def recorded(folder, log_prob, loss):
    samples = [("g0", 0), ("g0", 1)]
    values = np.full((2, 3), log_prob, dtype=np.float32)
    mask = np.ones((2, 3), dtype=np.int64)
    with rldbg.Recorder(folder) as recorder:
        recorder.record("trajectory", step=0, samples=samples, tokens=mask, loss_mask=mask, reward=np.array([1.0, 0.0]))
        recorder.record("forward_data", step=0, micro=0, samples=samples, log_probs=values, response_mask=mask)
        recorder.record("loss", step=0, micro=0, loss=loss)
    return rldbg.open(folder)


def advice(a, b):
    (finding,) = (each for each in rldbg.compare(a, b).findings if each.id == "loss-difference")
    return " ".join(finding.fix)


def test_settings_of_the_loss_are_named_only_where_it_differs_first(tmp_path):
    right = recorded(tmp_path / "right", -0.5, 1.0)
    assert "entropy_coeff" in advice(right, recorded(tmp_path / "loss", -0.5, 2.0))
    said = advice(right, recorded(tmp_path / "forward", -0.9, 2.0))
    assert "entropy_coeff" not in said and "stage forward first" in said
