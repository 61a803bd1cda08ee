"""Parameters that FSDP2 has spread over ranks: recorded as the shards they are, or gathered on request."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rldbg
from rldbg.analysis import check

PROGRAMS = Path(__file__).with_name("recorder_programs.py")
NAMES = ("0.weight", "1.weight")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks recorded, as shards and gathered, and the parameters as they were before."""
    folder = tmp_path_factory.mktemp("sharded")
    command = [sys.executable, str(PROGRAMS), "train_sharded", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return folder


def test_each_rank_records_its_shard_and_says_of_what(trained: Path) -> None:
    whole = np.load(trained / "whole0.npz")
    records = list(rldbg.open(trained / "shards").records(kind="param"))
    shards = {(record.fields["param_name"], record.key.rank): record for record in records}
    assert set(shards) == {(name, rank) for name in NAMES for rank in (0, 1)}
    for name in NAMES:
        both = [shards[name, rank] for rank in (0, 1)]
        np.testing.assert_array_equal(np.concatenate([record.array("param") for record in both]), whole[name])
        assert all(record.array("global_shape").tolist() == list(whole[name].shape) for record in both)
        assert all(record.fields["placements"] == ["Shard(dim=0)"] for record in both)
    assert len(list(rldbg.open(trained / "shards").records(kind="gradient"))) == 4


def test_shards_are_not_taken_for_replicas_that_disagree(trained: Path) -> None:
    recording = rldbg.open(trained / "shards")
    for record in recording.records():
        assert record.array("mesh_shape").tolist() == [2]
        assert record.array("mesh_coordinate").tolist() == [record.key.rank]
    assert {finding.id for finding in check(recording).findings} == set()
    assert {"gradients-agree", "replicas-agree"} <= set(check(recording).not_applicable)


def test_a_rank_with_nothing_of_a_parameter_invents_no_statistics(trained: Path) -> None:
    records = rldbg.open(trained / "shards").records(kind="param")
    empty = next(record.fields for record in records if record.fields["shape"] == [0, 3])
    assert (empty["norm"], empty["mean"], empty["std"]) == (0.0, None, None)


def test_gathered_parameters_are_whole_and_recorded_once(trained: Path) -> None:
    whole = np.load(trained / "whole0.npz")
    records = list(rldbg.open(trained / "gathered").records(kind="param"))
    assert sorted(record.fields["param_name"] for record in records) == list(NAMES)
    for record in records:
        np.testing.assert_array_equal(record.array("param"), whole[record.fields["param_name"]])
