"""Recorded steps executed again: bit for bit, with one thing changed, and as far as it goes without capsules."""

import json
from io import StringIO

import numpy as np
import pytest

import rldbg
from rldbg.analysis import compare, noise_beside, noise_folder
from rldbg.core import IncompleteDataError, UsageError
from rldbg.trainer.rerun import StageVerdict, measure_noise, rerun


def verdicts(report):
    return {stage.name: stage.verdict for stage in report.stages}


def test_a_step_is_reproduced_bit_for_bit(trained):
    run = trained("a", policy={"mini_batches": 3, "epochs": 2}, algorithm={"kl_coeff": 0.05})
    for step in (0, 1):
        report = rerun(run, step)
        assert set(verdicts(report).values()) == {StageVerdict.EXACT}
        assert report.reproduced and report.first_difference is None
    assert json.loads(json.dumps(report.to_dict()))["reproduced"] is True


def test_a_change_shows_where_it_would_have_acted(base_run):
    run = base_run
    report = rerun(run, 1, changes=["algorithm.entropy_coeff=0"])
    assert verdicts(report)["forward"] is StageVerdict.EXACT
    assert report.first_difference.name == "loss"
    assert rerun(run, 1, changes=["algorithm.scale_by_std=false"]).first_difference.name == "advantage"
    with pytest.raises(UsageError) as caught:
        rerun(run, 1, changes=["algorithm.entropy_coef=0"])
    assert "entropy_coeff" in caught.value.hint


def perturbed(run, target, field, change):
    """The run's recording with one field of the capsule of step 1 changed."""
    with rldbg.Recorder(target) as recorder:
        for kind in ("capsule", "capsule_result"):
            for record in rldbg.open(run).records(kind, 1):
                fields = dict(record.fields)
                if kind == "capsule":
                    fields[field] = change(np.array(fields[field]))
                recorder.record(
                    kind,
                    step=1,
                    epoch=record.key.epoch,
                    mini_batch=record.key.mini_batch,
                    samples=record.samples,
                    prompt_hashes=record.prompt_hashes,
                    **fields,
                )
    return target


def test_a_perturbed_parameter_first_shows_in_the_forward_stage(base_run, tmp_path):
    def one_value(array):
        array[0, 0] += 0.5
        return array

    run = base_run
    assert rerun(perturbed(run, tmp_path / "same", "advantages", lambda array: array), 1).reproduced
    report = rerun(perturbed(run, tmp_path / "p", "param:lm_head.weight", one_value), 1)
    assert report.first_difference.name == "forward"
    assert "token" in report.first_difference.to_dict()["first"]


def test_a_perturbed_advantage_first_shows_in_the_advantage_stage(base_run, tmp_path):
    report = rerun(perturbed(base_run, tmp_path / "p", "advantages", lambda array: array + 1), 1)
    assert report.first_difference.name == "advantage"


def test_without_a_capsule_it_does_what_the_recording_allows_and_says_what_not(trained):
    run = trained(
        "a",
        debug={
            "enable_data_dump": True,
            "dump_options": dict.fromkeys(
                ("trajectory", "old_log_probs", "forward_data", "loss", "is_loss_debug"), True
            ),
        },
    )
    report = rerun(run, 1)
    found = verdicts(report)
    assert found["advantage"] is StageVerdict.EXACT
    assert found["loss"] in (StageVerdict.EXACT, StageVerdict.WITHIN)
    assert {found[name] for name in ("forward", "gradient", "parameter")} == {StageVerdict.NOT_EXECUTED}
    assert all("capsule" in stage.note for stage in report.stages if stage.verdict is StageVerdict.NOT_EXECUTED)
    assert rerun(run, 1, changes=["algorithm.entropy_coeff=0.5"]).first_difference.name == "loss"


def test_a_recording_with_too_little_says_what_is_missing(trained):
    run = trained("a", debug={"enable_data_dump": True, "dump_options": {"loss": True}})
    report = rerun(run, 0)
    assert not report.reproduced
    assert "old_log_probs" in next(stage.note for stage in report.stages if stage.name == "loss")
    with pytest.raises(IncompleteDataError, match="no step 7"):
        rerun(run, 7)


def test_a_step_under_the_debugger_runs_on_or_is_left(base_run, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", StringIO("n\np recipe.steps + 100\nc\n"))
    assert rerun(base_run, 1, debugger=True).reproduced
    assert "102" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", StringIO("q\n"))
    with pytest.raises(KeyboardInterrupt):
        rerun(base_run, 1, debugger=True)


def test_noise_of_a_step_is_recorded_beside_the_run_and_has_every_kind(trained):
    run = trained("noisy", policy={"ranks": 2, "mini_batches": 2}, algorithm={"kl_coeff": 0.05})
    recording = rldbg.open(run)
    folders = measure_noise(recording, 1)
    assert {folder.parent for folder in folders} == {noise_folder(recording)} and len(folders) == 6
    repeated = noise_beside(recording)
    for item in repeated:
        assert item.steps() == (1,)
        result = compare(recording, item, steps=[1])
        assert result.verdict in ("equal", "equal within noise", "drift", "incomplete"), (item.title, result.to_dict())
        assert {"forward_data", "loss", "gradient", "param"} <= {field.kind for field in result.fields}
    gaps = [field.measured.max_abs for item in repeated for field in compare(recording, item, steps=[1]).fields]
    assert max(gaps) > 0
    assert measure_noise(recording, 1) == folders
    with pytest.raises(IncompleteDataError, match="no capsule"):
        measure_noise(rldbg.open(trained("bare", debug={"enable_data_dump": True, "dump_options": {"loss": True}})), 1)
