"""What runs reported of themselves is put beside what was recorded of them."""

import copy
import json

import pytest

import rldbg
from layout_recordings import step_values, write
from rldbg.analysis import compare
from rldbg.core import Run

VALUES = step_values()
LINES = [{"step": step, "loss": 1.0 / (step + 1), "reward/mean": 0.25, "time/step": 0.5 + step} for step in range(6)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Recordings of step 0, one of which differs there in a reward."""
    folder = tmp_path_factory.mktemp("recorded")
    other = copy.deepcopy(VALUES)
    other["reward"][5] += 1
    write(folder / "same", VALUES)
    write(folder / "other", other)
    return folder


@pytest.fixture
def run_of(tmp_path, recorded):
    def made(name, lines, recording="same"):
        run = Run.create(name=name, path=tmp_path / name)
        (run.path / "recording").symlink_to(recorded / recording)
        run.metrics_path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return rldbg.open(run.path)

    return made


def changed(step, **values):
    return [line | (values if line["step"] == step else {}) for line in LINES]


def parting(comparison):
    (finding,) = [finding for finding in comparison.findings if finding.id == "metrics-diverge"]
    return finding


def test_rounding_and_times_are_no_parting(run_of):
    lines = [line | {"loss": line["loss"] * (1 + 1e-5), "time/step": 9.0} for line in LINES]
    result = compare(run_of("a", LINES), run_of("b", lines))
    assert result.verdict == "equal" and result.findings == []


def test_the_first_step_is_named_with_its_numbers_and_causes_first(run_of):
    lines = [*changed(3, **{"loss": 0.5, "reward/mean": 0.125})[:5], LINES[5] | {"reward/mean": 0.0}]
    result = compare(run_of("a", LINES), run_of("b", lines))
    found = parting(result)
    assert result.verdict == "equal" and found.severity == "info" and found.where == "reward/mean, step 3"
    assert found.evidence == (
        "reward/mean: A 0.25, B 0.125",
        "loss: A 0.25, B 0.5",
        "at step 5, the last of both, reward/mean: A 0.25, B 0",
    )
    assert "record step 3 on both sides" in found.fix[0]


def test_a_step_whose_records_agree_is_told_apart(run_of):
    found = parting(compare(run_of("a", LINES), run_of("b", changed(0, loss=3.0))))
    assert "what was recorded of this step agrees" in found.cause and found.severity == "info"


def test_a_recorded_difference_comes_first(run_of):
    result = compare(run_of("a", LINES), run_of("b", changed(2, loss=None), "other"))
    found = parting(result)
    assert result.verdict == "different" and found.severity == "info"
    assert found.evidence[0] == "loss: A 0.333333, B NaN"
    assert "differ from step 0 on (reward)" in found.cause


def test_other_steps_and_other_kinds_say_nothing_of_it(run_of):
    a, b = run_of("a", LINES), run_of("b", changed(3, loss=0.5))
    assert compare(a, b, steps=[0]).findings == []
    assert compare(a, b, kinds=["trajectory"]).findings == []


def test_a_damaged_line_is_said_and_the_rest_compared(run_of):
    b = run_of("b", changed(3, loss=0.5))
    with b.run.metrics_path.open("a") as file:
        file.write('{"step": 6, "lo')
    found = {finding.id: finding for finding in compare(run_of("a", LINES), b).findings}
    assert set(found) == {"metrics-diverge", "metrics-unreadable"}
    assert found["metrics-unreadable"].evidence == ("1 of 7 lines are not metrics of a step",)
