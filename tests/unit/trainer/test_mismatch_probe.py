"""`rldbg mismatch --probe` on real runs: the change that reproduces the recorded log probs is the planted one."""

import pytest

import rldbg
from rldbg.cli.application import run
from rldbg.core import IncompleteDataError
from rldbg.inference import score_embedded
from rldbg.mismatch import probe
from rldbg.trainer import Capsule, capsule_model, recipe_from_data

HOT = {"inference": {"temperature": 0.8, "device": "cpu"}}


def test_a_clean_run_is_reproduced_by_the_model_of_its_capsule(base_run):
    report = probe(rldbg.open(base_run), samples=3)
    assert max(report.rollout_gap, report.trainer_gap) < 1e-5
    assert report.cause is None and len(report.samples) == 3


@pytest.mark.parametrize(
    ("bug", "cause", "facts", "side"),
    [
        ("rollout-with-top-k", "sampling-filter", {"top_k": 5}, "rollout"),
        ("rollout-without-temperature", "temperature", {"temperature": 1.0}, "rollout"),
        ("weights-not-synced-silently", "weights", {"version": 0}, "rollout"),
        ("positions-start-again", "positions", {}, "trainer"),
    ],
)
def test_the_planted_change_closes_the_gap(trained, bug, cause, facts, side):
    recording = rldbg.open(trained("bug", zoo={"bug": bug}, **HOT))
    report = probe(recording, step=1)
    assert (report.cause.id, report.side) == (cause, side)
    assert report.cause.parameters == facts
    assert report.cause.left < max(report.rollout_gap, report.trainer_gap) / 10


def test_an_engine_on_the_same_weights_agrees_with_the_trainer(base_run):
    report = probe(rldbg.open(base_run), step=1, samples=2, engine="embedded")
    scored = [item for item in report.factors if item.id == "engine"]
    assert len(scored) == 2 and all(item.left < 1e-4 for item in scored)
    assert scored[0].parameters["batch_variance"] < 1e-4


def test_scores_of_the_embedded_engine_leave_out_the_first_token(base_run):
    capsule = Capsule(rldbg.open(base_run), 0)
    model = capsule_model(capsule, recipe_from_data(capsule.recipe, source="test")).to_transformers()
    (row,) = score_embedded(model, [[5, 6, 7]])
    assert row.shape == (3,) and row[0] != row[0] and (row[1:] < 0).all()


def test_a_checkpoint_stands_in_for_the_capsule(base_run, tmp_path, capsys):
    capsule = Capsule(rldbg.open(base_run), 1)
    model = capsule_model(capsule, recipe_from_data(capsule.recipe, source="test")).to_transformers()
    model.save_pretrained(tmp_path / "model")
    report = probe(rldbg.open(base_run), step=1, samples=2, checkpoint=tmp_path / "model")
    assert max(report.rollout_gap, report.trainer_gap) < 1e-4
    assert run(["mismatch", str(base_run), "--model", str(tmp_path)]) == 2
    assert run(["mismatch", str(base_run), "--probe", "--model", str(tmp_path)]) == 2
    assert "no config.json" in capsys.readouterr().err


def test_without_a_capsule_there_is_no_experiment(tmp_path):
    rldbg.Recorder(tmp_path).record("loss", step=0, loss=1.0)
    with pytest.raises(IncompleteDataError, match="no capsule"):
        probe(rldbg.open(tmp_path))
