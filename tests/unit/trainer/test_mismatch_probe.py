"""`rldbg mismatch --probe` on real runs: the change that reproduces the recorded log probs is the planted one."""

from contextlib import contextmanager

import pytest

import rldbg
from rldbg.cli.application import run
from rldbg.core import IncompleteDataError
from rldbg.inference import score_embedded
from rldbg.inference.application import build_application
from rldbg.inference.embedded.loading import embed
from rldbg.inference.embedded.text import NoText
from rldbg.mismatch import probe
from rldbg.trainer import Capsule, capsule_model, recipe_from_data
from served_application import served
from small_server import small_server

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
    assert report.engine.cause is None and not report.engine.raw
    assert max(report.engine.model_gap, report.engine.rollout_gap, report.engine.batch_variance) < 1e-4


@contextmanager
def served_step(run, step):
    """`rldbg serve` with the weights that a step started from; its address."""
    capsule = Capsule(rldbg.open(run), step)
    model = capsule_model(capsule, recipe_from_data(capsule.recipe, source="test")).to_transformers()
    with served(lambda: build_application(embed(model, text=NoText(), device="cpu"))) as url:
        yield url.removeprefix("http://")


@pytest.mark.parametrize(("route", "temperature"), [("", 0.8), ("/v1", 1.0)])
def test_an_engine_with_old_weights_is_told_from_one_with_the_trainers(trained, capsys, route, temperature):
    """Asked now, an engine that was not synced gives what the first version's weights give."""
    inference = {"temperature": temperature, "device": "cpu"}
    folder = trained("bug", zoo={"bug": "weights-not-synced-silently"}, inference=inference)
    with served_step(folder, 0) as stale:
        words = [
            "mismatch",
            str(folder),
            "--probe",
            "--step",
            "1",
            "--samples",
            "2",
            "--engine",
            f"http://{stale}{route}",
        ]
        assert run(words) == 1
        report = probe(rldbg.open(folder), step=1, samples=2, engine=stale + route)
    told = " ".join(capsys.readouterr().out.split())
    assert "this change reproduces the engine's scores: all weights of version 0" in told
    assert report.engine.model_gap > 1e-2 and report.engine.raw == (temperature != 1)
    assert report.engine.rollout_gap is None if temperature != 1 else report.engine.rollout_gap < 1e-4
    with served_step(folder, 1) as fresh:
        report = probe(rldbg.open(folder), step=1, samples=2, engine=fresh + route)
    assert report.engine.model_gap < 1e-4 and report.engine.cause is None and report.cause.id == "weights"


def test_an_engine_that_does_not_score_says_which_routes_were_tried(base_run, capsys):
    with small_server(sglang=False) as server:
        assert run(["mismatch", str(base_run), "--probe", "--samples", "1", "--engine", server.address]) == 4
    told = " ".join(capsys.readouterr().err.split())
    assert "/generate: 404" in told and "/v1/completions: " in told


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
    assert "config.json is missing" in capsys.readouterr().err


def test_without_a_capsule_there_is_no_experiment(tmp_path):
    rldbg.Recorder(tmp_path).record("loss", step=0, loss=1.0)
    with pytest.raises(IncompleteDataError, match="no capsule"):
        probe(rldbg.open(tmp_path))
