"""Snapshots on disk: named by either protocol's path, complete or not there, and no more of them than promised."""

import time

import pytest
import torch

from rldbg.training_service.errors import ConflictError, NotFoundError, ServiceRequestError
from rldbg.training_service.snapshots import ModelSnapshot, Snapshots

WEIGHTS = {"table": torch.arange(6.0).reshape(2, 3)}


def snapshot(name="a", purpose="weights", **facts):
    defaults = {
        "id": name,
        "model_id": "s:train:0",
        "base_model": "tiny",
        "step": 3,
        "has_optimizer": False,
        "created_at": time.time(),
        "expires_at": None,
        "ephemeral": False,
    }
    return ModelSnapshot(name=name, purpose=purpose, **{**defaults, **facts})


def test_both_schemes_name_the_same_snapshot(tmp_path):
    store = Snapshots(tmp_path)
    saved = store.save(snapshot(), WEIGHTS, None)
    assert store.find("weaver://s:train:0/checkpoints/a") == saved == store.find("tinker://s:train:0/weights/a")
    export = store.save(snapshot(purpose="sampler"), WEIGHTS, None)
    assert store.find(export.path("tinker")) == store.find(export.path("weaver")) == export
    weights, optimizer = Snapshots(tmp_path).load(saved, optimizer=False)
    assert torch.equal(weights["table"], WEIGHTS["table"]) and optimizer is None


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a",
        "weaver://m/a",
        "weaver://../checkpoints/a",
        "weaver://m/checkpoints/..",
        "tinker://m/other/a",
        "s3://m/weights/a",
    ],
)
def test_what_is_no_path_is_refused(tmp_path, path):
    with pytest.raises(ServiceRequestError):
        Snapshots(tmp_path).find(path)


def test_a_name_is_taken_once_unless_overwritten(tmp_path):
    store = Snapshots(tmp_path)
    store.save(snapshot(), WEIGHTS, None)
    with pytest.raises(ConflictError, match="already has"):
        store.save(snapshot(), WEIGHTS, None)
    store.save(snapshot(step=9), WEIGHTS, None, overwrite=True)
    assert store.find("tinker://s:train:0/weights/a").step == 9
    with pytest.raises(ServiceRequestError, match="not a valid name"):
        store.save(snapshot(name="../x"), WEIGHTS, None)


def test_expired_ones_and_all_but_the_newest_unnamed_exports_go(tmp_path):
    store = Snapshots(tmp_path)
    store.save(snapshot("old", expires_at=time.time() - 1), WEIGHTS, None)
    for number in range(12):
        store.save(snapshot(f"e{number}", "sampler", ephemeral=True, created_at=float(number)), WEIGHTS, None)
    assert [item.name for item in store.of_model("s:train:0")] == [f"e{number}" for number in range(4, 12)]
    with pytest.raises(NotFoundError):
        store.find("tinker://s:train:0/weights/old")
    with pytest.raises(NotFoundError, match="is gone"):
        store.load(snapshot("e0", "sampler", ephemeral=True), optimizer=False)


def test_the_optimizer_is_there_only_when_saved(tmp_path):
    store = Snapshots(tmp_path)
    bare = store.save(snapshot("bare"), WEIGHTS, None)
    with pytest.raises(ServiceRequestError, match="without the optimizer"):
        store.load(bare, optimizer=True)
    full = store.save(snapshot("full", has_optimizer=True), WEIGHTS, {"table/step": torch.tensor(1.0)})
    assert store.load(full, optimizer=True)[1] == {"table/step": torch.tensor(1.0)}
