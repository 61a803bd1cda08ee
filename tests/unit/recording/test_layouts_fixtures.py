"""Dumps written by the other frameworks themselves, where they are at hand."""

import numpy as np
import pytest

from rldbg.core import SampleId
from rldbg.recording import RecordKey
from rldbg.recording import open as open_recording
from third_party import material, needs

FIXTURES = material("fixtures")
pytestmark = needs(FIXTURES)

_EVERY = {
    "nexrl/self_hosted_pt": ("nexrl", 15, 4),
    "nexrl/self_hosted_jsonl": ("nexrl", 15, 4),
    "nexrl/weaver_pt": ("nexrl", 15, 4),
    "nexrl/weaver_jsonl": ("nexrl", 15, 4),
    "slime/rollout_data": ("slime", 1, 4),
    "slime/train_data": ("slime", 2, 4),
    "slime": ("slime", 3, 4),
    "sglang/tp1": ("sglang", 2, 0),
    "sglang/tp2": ("sglang", 4, 0),
    "verl/exp_proj": ("verl", 1, 4),
    "verl_jsonl": ("verl", 1, 2),
    "nemo_rl": ("nemo_rl", 2, 2),
    "prime_rl/token_exports": ("prime_rl", 3, 1),
    "areal/rollout": ("areal", 1, 1),
    "areal/batch_data.pt": ("areal", 1, 1),
    "trl/completions": ("trl", 1, 2),
}


@pytest.mark.parametrize("name", _EVERY)
def test_every_fixture_opens_reads_and_verifies(name):
    recording = open_recording(FIXTURES / name)
    summary = recording.summary()
    assert (recording.layout.name, len(recording.keys()), summary.samples) == _EVERY[name]
    assert {finding.severity for finding in recording.verify()} <= {"info"}


def test_nexrl_pt_and_jsonl_are_the_same_data():
    first, second = (open_recording(FIXTURES / "nexrl" / f"self_hosted_{form}") for form in ("pt", "jsonl"))
    assert first.keys() == second.keys()
    one, other = (recording.read(RecordKey("forward_data", 0, 1, 1)) for recording in (first, second))
    np.testing.assert_allclose(one.array("log_probs"), other.array("log_probs"), rtol=1e-6)
    assert first.read(RecordKey("trajectory", 0)).samples == second.read(RecordKey("trajectory", 0)).samples


def test_slime_rollout_and_train_agree_on_the_rollout_log_probs():
    recording = open_recording(FIXTURES / "slime")
    compared = 0
    for id in recording.samples(step=0):
        rows = {row.key.kind: row.fields for row in recording.sample(id, 0).rows}
        rollout, train = (rows[kind]["logprobs"] for kind in ("trajectory", "prepared_trajectories"))
        np.testing.assert_allclose(rollout, train, rtol=1e-6)
        compared += len(rollout)
    assert compared == 26


def test_verl_batch_has_ids_and_log_probs():
    record = open_recording(FIXTURES / "verl" / "exp_proj").read(RecordKey("trajectory", 1))
    assert record.samples == (SampleId("u0", 0), SampleId("u0", 1), SampleId("u1", 0), SampleId("u1", 1))
    assert all(row[:3].tolist() == [0, 0, 0] and (row[3:] < 0).all() for row in record.rows("logprobs"))
