"""Recorded trajectories for any trainer: by step, by key, as tensors; and never anything that was not recorded."""

import numpy as np
import pytest
import torch

import rldbg
from rldbg.core import IncompleteDataError, SampleId, UsageError
from rldbg.replay import ReplayRollout, Trajectory, TrajectoryBatch


def sample(step, number):
    prompt, response = 2 + number % 2, 1 + number
    length = prompt + response
    return {
        "tokens": [10 * step + number] * prompt + [7] * response,
        "loss_mask": [0] * prompt + [1] * response,
        "reward": float(number),
        "is_val": False,
        "logprobs": [0.0] * prompt + [-0.25] * response,
        "policy_versions": [-1] * prompt + [step] * response,
        "extra_fields": {"group_id": f"g{step}", "run_id": number, "score": 1.0, "length": length},
    }


def record(folder, *, format="safetensors", steps=(0, 1), change=lambda step, samples: samples):
    with rldbg.Recorder(folder, format=format) as recorder:
        for step in steps:
            samples = change(step, [sample(step, number) for number in range(3)])
            recorder.record("trajectory", step=step, trajectories=samples)
    return folder


@pytest.mark.parametrize("format", ["safetensors", "pt", "jsonl"])
def test_what_was_recorded_comes_back_in_every_format(tmp_path, format):
    replay = ReplayRollout(record(tmp_path / "r", format=format), format=format)
    assert replay.steps == (0, 1)
    found = dict(replay)
    assert [item.sample for item in found[1]] == [SampleId("g1", number) for number in range(3)]
    last = found[1][2]
    assert last.tokens.tolist() == [12, 12, 7, 7, 7] and last.loss_mask.tolist() == [0, 0, 1, 1, 1]
    assert last.reward == 2.0 and last.prompt_length == 2 and last.response_length == 3
    np.testing.assert_array_equal(last.logprobs, np.asarray([0, 0, -0.25, -0.25, -0.25], dtype=np.float32))
    assert last.policy_versions.tolist() == [-1, -1, 1, 1, 1]


def test_one_file_or_one_folder_is_enough(tmp_path):
    folder = record(tmp_path / "r", format="pt")
    assert ReplayRollout(folder / "trajectory").steps == (0, 1)
    assert ReplayRollout(folder / "trajectory" / "step_000001.pt").steps == (1,)


def test_a_sample_is_found_by_key_with_its_prompt_unchanged(tmp_path):
    replay = ReplayRollout(record(tmp_path / "r"))
    assert replay.get(SampleId("g0", 1), step=0, prompt=[1, 1, 1]).reward == 1.0
    assert replay.has(SampleId("g0", 1), step=0) and not replay.has(SampleId("g0", 1), step=1)
    with pytest.raises(IncompleteDataError, match="differs from token 1"):
        replay.get(SampleId("g0", 1), step=0, prompt=[1, 5, 1])
    with pytest.raises(IncompleteDataError, match="prompt"):
        replay.get(SampleId("g0", 1), step=0, prompt=[1, 1, 1, 7])


def test_a_miss_says_what_was_looked_for_and_what_there_is(tmp_path):
    replay = ReplayRollout(record(tmp_path / "r"))
    with pytest.raises(IncompleteDataError, match=r"group_id='g0', run_id=9.*runs 0-2"):
        replay.get(SampleId("g0", 9), step=0)
    with pytest.raises(IncompleteDataError, match=r"group_id='other'.*groups are g0"):
        replay.get(SampleId("other", 0), step=0)
    with pytest.raises(IncompleteDataError, match="no trajectories of step 5; it has 0-1"):
        replay.trajectories(5)


def test_validation_samples_are_left_out(tmp_path):
    def mark(_step, samples):
        return [item | {"is_val": number == 0} for number, item in enumerate(samples)]

    assert len(ReplayRollout(record(tmp_path / "r", change=mark)).trajectories(0)) == 2


def test_what_cannot_be_replayed_is_named(tmp_path):
    with pytest.raises(IncompleteDataError, match="nowhere"):
        ReplayRollout(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="trajectory_format is pt"):
        ReplayRollout(record(tmp_path / "r"), format="pt")
    with rldbg.Recorder(tmp_path / "other") as recorder:
        recorder.record("loss", step=0, micro=0, samples=[("g", 0)], loss=1.0)
    with pytest.raises(IncompleteDataError, match="but loss"):
        ReplayRollout(tmp_path / "other")
    folder = record(tmp_path / "cut", format="pt")
    file = folder / "trajectory" / "step_000000.pt"
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(IncompleteDataError, match="step_000000"):
        ReplayRollout(folder).trajectories(0)


def test_a_batch_pads_prompts_on_the_left_and_responses_on_the_right(tmp_path):
    batch = ReplayRollout(record(tmp_path / "r")).as_batch(0, pad_id=99)
    assert batch.input_ids.tolist() == [[99, 0, 0, 7, 99, 99], [1, 1, 1, 7, 7, 99], [99, 2, 2, 7, 7, 7]]
    assert batch.attention_mask[0].tolist() == [0, 1, 1, 1, 0, 0]
    assert batch.position_ids[0].tolist()[1:4] == [0, 1, 2]
    assert batch.response_mask.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert batch.rewards.tolist() == [0, 1, 2] and batch.response_lengths.tolist() == [1, 2, 3]
    moved = batch.to("meta")
    assert moved.input_ids.device.type == moved.rewards.device.type == "meta"
    assert moved.samples == batch.samples and len(moved) == 3


def test_a_rollout_without_log_probs_is_not_given_any():
    item = Trajectory(SampleId("g", 0), np.asarray([3, 4]), np.asarray([0, 1]), 1.0)
    assert torch.isnan(TrajectoryBatch.from_trajectories([item]).rollout_log_probs).all()
