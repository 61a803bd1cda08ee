"""The metrics experts watch, over steps, and their export."""

import numpy as np
import pytest

from rldbg.analysis.step_metrics import export_metrics, metrics_by_step
from rldbg.core import UsageError
from synthetic_steps import step_data, write


def test_metrics_of_a_healthy_and_a_stale_step(tmp_path):
    stale = step_data(1)
    stale["versions"] = np.where(stale["versions"] >= 0, 0, -1)
    stale["rollout"] = stale["old"] - 0.5
    stale["rewards"][:] = 1
    first, second = metrics_by_step(write(tmp_path / "a", step_data(), stale))
    assert first["step"] == 0 and first["staleness/max"] == 0 and first["groups/zero_std"] < 1
    assert first["rollout/token_mult_prob_error"] == pytest.approx(np.exp(0.001), rel=1e-4)
    assert second["staleness/max"] == 1 and second["groups/zero_std"] == 1
    assert second["rollout/k1"] == pytest.approx(-0.5, abs=1e-5)
    assert second["rollout/abs_diff_max"] == pytest.approx(0.5, abs=1e-5)
    assert second["rollout/ess"] == pytest.approx(1.0) and second["update/ratio_max"] == pytest.approx(1.0)


def test_metrics_go_to_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = metrics_by_step(write(tmp_path / "a", step_data(), step_data(1)))
    export_metrics(rows, tmp_path / "out" / "metrics.parquet")
    table = parquet.read_table(tmp_path / "out" / "metrics.parquet")
    assert table["step"].to_pylist() == [0, 1]
    assert table["rollout/k3"].to_pylist() == [row["rollout/k3"] for row in rows]


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"metrics\.csv"):
        export_metrics([{"step": 0.0}], tmp_path / "metrics.csv")
