"""Frameworks that do not run here, by stubs of the shape of their sources: one batch in every layout, equal records."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from rldbg.frameworks import find_framework, plan_for, recorded, recording_findings
from rldbg.frameworks.slime import path_hooks
from rldbg.recording import open as open_recording

from . import stubs

NO_REWARDS = {"prime_rl", "nexrl"}


@pytest.fixture(params=sorted(stubs.STUBS))
def run(request, tmp_path, monkeypatch):
    """Each process of the framework has hooks of its own."""
    plan = plan_for(tmp_path / "run")
    monkeypatch.setenv("RLDBG_RECORD_HOOKS", plan.to_text())
    stub, train = stubs.STUBS[request.param]()
    processes = []
    for modules in stub.processes.values():
        processes.append(recorded.ProcessHooks(plan))
        for module in modules.values():
            processes[-1].hook(module)
    train()
    for process in processes:
        process.recorded.recorder().close()
    return request.param, tmp_path / "run"


def test_slimes_path_option_records_samples_that_a_filter_dropped(tmp_path, monkeypatch):
    def sample(index, response, reward, **more):
        return SimpleNamespace(
            index=index, group_index=0, tokens=[7, 8, *response], response_length=len(response), reward=reward,
            loss_mask=None, rollout_log_probs=[-0.5] * len(response), weight_versions=["3"],
            status=SimpleNamespace(value="completed"), **more,
        )  # fmt: skip

    plan = plan_for(tmp_path)
    monkeypatch.setattr(sys, "_rldbg_recorded", hooks := recorded.ProcessHooks(plan), raising=False)
    path_hooks.all_samples(None, [[sample(0, [1], 1.0), [sample(1, [2, 3], {"a": 1}), sample(2, [4], 0)]]], None)
    path_hooks.all_samples(None, [[object()]], None)
    hooks.recorded.recorder().close()
    (record,) = open_recording(tmp_path).records("rollout_samples")
    assert [row.tolist() for row in record.rows("loss_mask")] == [[0, 0, 1], [0, 0, 1, 1], [0, 0, 1]]
    assert record.array("reward").tolist() == pytest.approx([1.0, np.nan, 0.0], nan_ok=True)
    assert len(set(record.samples)) == 3
    assert {each.group_id for each in record.samples} == {record.samples[0].group_id}


def rows(recording, kind, field):
    record = next(recording.records(kind=kind))
    return record, [np.asarray(row) for row in record.rows(field)]


def test_one_batch_gives_the_same_records_in_every_layout(run):
    name, folder = run
    recording = open_recording(folder)
    batch, tokens = rows(recording, "trajectory", "tokens")
    assert [row.tolist() for row in tokens] == [row.tolist() for row in stubs.TOKENS]
    expected = {
        "trajectory": {"loss_mask": stubs.MASK},
        "prepared_trajectories": {"advantages": stubs.ADVANTAGES},
        "forward_data": {"log_probs": stubs.NEW, "response_mask": stubs.MASK},
        "is_loss_debug": {"log_probs": stubs.NEW, "old_log_probs": stubs.OLD, "advantages": stubs.ADVANTAGES},
    }
    for kind, fields in expected.items():
        for field, given in fields.items():
            record, found = rows(recording, kind, field)
            assert record.samples == batch.samples, "what two functions say of a sample is joined by its id"
            for have, want, mask in zip(found, given, stubs.MASK, strict=True):
                trained = np.flatnonzero(mask)
                whole = kind in ("trajectory", "prepared_trajectories")
                assert have[trained if whole else trained - trained[0]] == pytest.approx(want[trained]), (kind, field)
    if name in ("slime", "miles"):
        assert {"values", "returns"} <= set(next(recording.records("prepared_trajectories")).fields)
        assert len(list(recording.records("trajectory"))) == 1, "the critic's process has the same batch"
    if name not in NO_REWARDS:
        assert batch.array("reward").tolist() == stubs.REWARDS
    assert len({sample.group_id for sample in batch.samples}) == 2
    (loss,) = recording.records(kind="loss")
    assert float(loss.fields["loss"]) == 0.75


def test_gradients_parameters_and_the_norm_belong_to_the_step(run):
    _, folder = run
    recording = open_recording(folder)
    (gradient,) = recording.records(kind="gradient")
    assert gradient.array("gradient").tolist() == [[1.0, 1.0]]
    assert {record.fields["param_name"] for record in recording.records(kind="param")} == {"weight", "bias"}
    (metrics,) = recording.records(kind="update_metrics")
    assert metrics.fields["metrics"]["grad_norm"] == 1.5
    steps = {entry.step for entry in recording.entries() if entry.kind not in ("trajectory", "prepared_trajectories")}
    assert steps == {1}


def test_nothing_that_is_hooked_fails_or_is_silently_missing(run):
    name, folder = run
    found = recording_findings(folder)
    assert not [each for each in found if each.id == "recording.hook-failed"], found
    title = find_framework(name).title
    assert all(title in each.where for each in found)
