"""`rldbg check --export`: what TensorBoard itself reads back."""

import pytest

from rldbg.cli.application import run
from synthetic_steps import step_data, write


def test_tensorboard_reads_the_metrics_of_every_step(tmp_path, capsys):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("torch.utils.tensorboard")
    write(tmp_path / "run", step_data(), step_data(1))
    assert run(["check", str(tmp_path / "run"), "--export", str(tmp_path / "events")]) in (0, 1)
    assert "metrics of 2 steps" in capsys.readouterr().err
    found = events.EventAccumulator(str(tmp_path / "events")).Reload()
    assert [item.step for item in found.Scalars("rollout/k3")] == [0, 1]
