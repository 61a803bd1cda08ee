"""Layouts of torch.save files: NexRL, slime and miles, sglang, verl's rollout cache, AReaL's batches."""

import json
import math
import zipfile

import numpy as np
import peer_dumps
import pytest
import torch

from rldbg.core import IncompleteDataError, SampleId
from rldbg.recording import IDS_FROM, EncodedArray, RecordKey
from rldbg.recording import open as open_recording


@pytest.mark.parametrize("form", ["pt", "jsonl"])
def test_nexrl_has_every_rank_step_and_micro_batch(tmp_path, form):
    peer_dumps.nexrl(tmp_path / "dump", steps=(0, 1, 5), ranks=3, micros=4, form=form)
    recording = open_recording(tmp_path / "dump")
    assert recording.layout.name == "nexrl"
    assert recording.steps() == (0, 1, 5)
    assert recording.ranks("forward_data") == (0, 1, 2)
    assert recording.micros("forward_data", step=5, rank=2) == (0, 1, 2, 3)
    assert recording.kinds()[0] == "trajectory"
    trajectory = recording.read(RecordKey("trajectory", 1))
    assert trajectory.samples[:3] == (SampleId("g0", 0), SampleId("g0", 1), SampleId("g1", 0))
    assert len(set(trajectory.prompt_hashes)) == 1
    assert [row.tolist() for row in trajectory.rows("tokens")][1] == [1, 2, 3, 11]
    assert math.isnan(recording.read(RecordKey("training_metrics", 0)).fields["metrics"]["kl"])


def test_nexrl_keeps_bfloat16_and_half_precision(tmp_path):
    peer_dumps.nexrl(tmp_path / "half", dtype=torch.float16)
    peer_dumps.nexrl(tmp_path / "brain", dtype=torch.bfloat16)
    key = RecordKey("forward_data", 0, 1, 1)
    half, brain = (open_recording(tmp_path / name).read(key) for name in ("half", "brain"))
    assert half.dtype("log_probs") == "float16"
    assert brain.dtype("log_probs") == "bfloat16"
    saved = torch.load(tmp_path / "brain" / "forward_data" / "step_000000_rank1_micro1.pt")["log_probs"]
    np.testing.assert_array_equal(brain.array("log_probs"), saved.float().numpy())


def test_nexrl_pass_before_the_first_step_is_step_minus_one(tmp_path):
    folder = tmp_path / "forward_data"
    folder.mkdir()
    torch.save(
        {"step": -1, "rank": 0, "micro_idx": 0, "log_probs": torch.zeros(1, 2)}, folder / "step_-00001_rank0_micro0.pt"
    )
    assert open_recording(tmp_path).keys() == (RecordKey("forward_data", -1),)


def test_nexrl_keeps_unknown_keys_and_does_without_optional_ones(tmp_path):
    folder = tmp_path / "forward_data"
    folder.mkdir()
    data = {"step": 0, "rank": 0, "micro_idx": 0, "log_probs": torch.zeros(1, 2), "routing": torch.ones(3)}
    torch.save(data, folder / "step_000000_rank0_micro0.pt")
    record = open_recording(tmp_path).read(RecordKey("forward_data", 0))
    assert set(record.fields) == {"log_probs"}
    assert record.extra["routing"].tolist() == [1, 1, 1]


def test_nexrl_trajectories_without_ids_get_ids_that_say_so(tmp_path):
    peer_dumps.nexrl(tmp_path, ids=False)
    record = open_recording(tmp_path).read(RecordKey("trajectory", 0))
    assert [sample.run_id for sample in record.samples] == list(range(8))
    assert record.samples[0].group_id == record.prompt_hashes[0]
    assert "order" in record.extra[IDS_FROM]


def test_nexrl_samples_of_which_some_have_no_ids_are_all_counted(tmp_path):
    named = {"tokens": [1, 2], "loss_mask": [0, 1], "reward": 1.0, "extra_fields": {"group_id": "g", "run_id": 0}}
    bare = {"tokens": [1, 3, 4], "loss_mask": [0, 1, 1], "reward": 0.0}
    (tmp_path / "trajectory").mkdir()
    for step, rows in enumerate(([bare, named], [named, named | {"extra_fields": {"uid": "u", "run_id": "1"}}])):
        batch = {"step": step, "num_trajectories": 2, "trajectories": rows}
        torch.save(batch, tmp_path / "trajectory" / f"step_{step:06d}.pt")
    recording = open_recording(tmp_path)
    partly = recording.read(RecordKey("trajectory", 0))
    assert len(partly.samples) == len(partly.fields["extra_fields"]) == 2
    assert IDS_FROM in partly.extra
    assert recording.read(RecordKey("trajectory", 1)).samples == (SampleId("g", 0), SampleId("u", 1))


def test_nexrl_datums_without_a_mask_still_count(tmp_path):
    inputs = {"target_tokens": [2, 3], "logprobs": [0.0, -0.1], "advantages": [0.0, 1.0]}
    (tmp_path / "datums").mkdir()
    datums = [{"input_tokens": [1, 2], "loss_fn_inputs": inputs}] * 2
    torch.save({"step": 0, "num_datums": 2, "datums": datums}, tmp_path / "datums" / "step_000000.pt")
    assert open_recording(tmp_path).summary().samples == 2


def test_nexrl_datums_hash_the_same_prompt_as_their_trajectory(tmp_path):
    peer_dumps.nexrl(tmp_path)
    recording = open_recording(tmp_path)
    datums, trajectory = (recording.read(RecordKey(kind, 0)) for kind in ("datums", "trajectory"))
    assert datums.prompt_hashes == trajectory.prompt_hashes[:1]


def test_nexrl_advantages_may_be_tensors_of_one_number(tmp_path):
    rows = [{"tokens": [1, 2], "loss_mask": [0, 1], "reward": torch.tensor(float(row))} for row in range(2)]
    batch = {
        "step": 0,
        "num_trajectories": 2,
        "trajectories": rows,
        "advantages": [torch.tensor(0.5), torch.tensor(-0.5)],
    }
    (tmp_path / "prepared_trajectories").mkdir()
    torch.save(batch, tmp_path / "prepared_trajectories" / "step_000000.pt")
    record = open_recording(tmp_path).read(RecordKey("prepared_trajectories", 0))
    assert (record.array("advantages").tolist(), record.array("reward").tolist()) == ([0.5, -0.5], [0.0, 1.0])


@pytest.mark.parametrize("rewards", [[1, 0.5], [None, 2], [np.float32(0.25), 1], [torch.tensor(1), None]])
def test_nexrl_rewards_of_mixed_types_are_numbers(tmp_path, rewards):
    rows = [{"tokens": [1, 2], "loss_mask": [0, 1], "reward": reward} for reward in rewards]
    (tmp_path / "trajectory").mkdir()
    batch = {"step": 0, "num_trajectories": 2, "trajectories": rows}
    torch.save(batch, tmp_path / "trajectory" / "step_000000.pt")
    found = open_recording(tmp_path).read(RecordKey("trajectory", 0)).array("reward")
    np.testing.assert_array_equal(found, [np.nan if reward is None else float(reward) for reward in rewards])


def test_nexrl_rows_of_different_lengths_are_ragged(tmp_path):
    peer_dumps.lines(tmp_path / "batch_inputs" / "step_000000_rank0_micro0.jsonl", [{"input_ids": [[1, 2], [3]]}])
    peer_dumps.lines(tmp_path / "loss" / "step_000000_rank0_micro0.jsonl", [{"loss": 0.5}])
    record = open_recording(tmp_path).read(RecordKey("batch_inputs", 0))
    assert [row.tolist() for row in record.rows("input_ids")] == [[1, 2], [3]]


@pytest.mark.parametrize("form", ["pt", "jsonl"])
def test_nexrl_file_outside_of_its_folder_says_what_it_is(tmp_path, form):
    peer_dumps.nexrl(tmp_path / "dump", steps=(3,), ranks=2, micros=1, form=form)
    files = {
        "trajectory": "trajectory/step_000003",
        "prepared_trajectories": "prepared_trajectories/step_000003",
        "datums": "datums/step_000003",
        "forward_data": "forward_data/step_000003_rank1_micro0",
        "param": "param/step_000003_rank1",
    }
    (tmp_path / "mine").mkdir()
    for kind, name in files.items():
        for copy in (tmp_path / "mine" / f"{kind} of monday.{form}", tmp_path / "mine" / f"step_000003.{form}"):
            copy.write_bytes((tmp_path / "dump" / f"{name}.{form}").read_bytes())
            (key,) = open_recording(copy).keys()
            assert key == RecordKey(kind, 3, 1 if "rank1" in name else 0)
            assert (
                open_recording(copy).read(key).fields.keys()
                == open_recording(tmp_path / "dump").read(key).fields.keys()
            )


def test_nexrl_users_own_kind_beside_the_known_ones(tmp_path):
    peer_dumps.nexrl(tmp_path, ranks=1, micros=1)
    (tmp_path / "attention").mkdir()
    torch.save(
        {"step": 0, "rank": 0, "micro_idx": 0, "weights": torch.eye(2)},
        tmp_path / "attention" / "step_000000_rank0_micro0.pt",
    )
    record = open_recording(tmp_path).read(RecordKey("attention", 0))
    assert record.fields["weights"].tolist() == [[1, 0], [0, 1]]


def test_slime_rollout_is_a_trajectory_aligned_with_its_tokens(tmp_path):
    samples = [
        peer_dumps.slime_sample(0),
        peer_dumps.slime_sample(1, reward={"score": 0.75, "acc": True}, loss_mask=[1, 0, 1]),
        peer_dumps.slime_sample(2, reward=None, loss_mask=None, rollout_log_probs=None, weight_versions=["7", "8"]),
    ]
    peer_dumps.slime_rollout(tmp_path, 3, samples)
    record = open_recording(tmp_path).read(RecordKey("trajectory", 3))
    assert record.samples == (SampleId("0", 0), SampleId("0", 1), SampleId("1", 2))
    assert [row.tolist() for row in record.rows("loss_mask")] == [[0, 0, 1, 1, 1], [0, 0, 1, 0, 1], [0, 0, 1, 1, 1]]
    assert next(row.tolist() for row in record.rows("logprobs")) == [0, 0, -0.1, -0.2, -0.3]
    assert np.isnan(list(record.rows("logprobs"))[2][2:]).all()
    np.testing.assert_array_equal(record.array("reward"), [0.0, 0.75, np.nan])
    assert "policy_versions" not in record.fields, "a sample whose weights changed has no one version a token"
    assert record.fields["extra_fields"][1]["reward"] == {"score": 0.75, "acc": True}
    assert record.fields["extra_fields"][2]["weight_versions"] == ["7", "8"]
    assert len(set(record.prompt_hashes)) == 1


def test_slime_indices_that_are_no_numbers_are_left_in_order(tmp_path):
    samples = [(peer_dumps.slime_sample(row) | {"index": f"task-{row}", "group_index": "g"}) for row in range(2)]
    peer_dumps.slime_rollout(tmp_path, 0, samples)
    record = open_recording(tmp_path).read(RecordKey("trajectory", 0))
    assert record.samples == (SampleId("g", 0), SampleId("g", 1))
    assert IDS_FROM in record.extra


def test_slime_evaluation_is_kept_apart_from_training(tmp_path):
    peer_dumps.slime_rollout(tmp_path, 3, [peer_dumps.slime_sample(0)])
    peer_dumps.slime_rollout(tmp_path, 3, [peer_dumps.slime_sample(1)], evaluation=True)
    recording = open_recording(tmp_path)
    assert recording.kinds() == ("trajectory", "validation")
    assert recording.read(RecordKey("validation", 3)).array("is_val").all()


def test_slime_without_samples_is_an_empty_record(tmp_path):
    peer_dumps.slime_rollout(tmp_path, 0, [])
    recording = open_recording(tmp_path)
    assert recording.read(RecordKey("trajectory", 0)).samples == ()
    assert [finding.id for finding in recording.verify()] == ["empty-record"]


def test_slime_train_file_is_joined_to_its_rollout(tmp_path):
    peer_dumps.slime_rollout(tmp_path, 0, [peer_dumps.slime_sample(index) for index in range(4)])
    peer_dumps.slime_train(tmp_path, 0, 4, dtype=torch.bfloat16, ref_log_probs=-2.0, entropy=0.5)
    sample = open_recording(tmp_path).sample(SampleId("1", 3))
    assert [row.key.kind for row in sample.rows] == ["trajectory", "prepared_trajectories", "old_log_probs"]
    old = sample.find("old_log_probs")
    assert isinstance(old, EncodedArray)
    assert old.dtype == "bfloat16"
    assert sample.find("ref_log_probs").tolist() == [-2, -2, -2]
    assert sample.find("advantages").tolist() == [0, 0, 1, 1, 1]


def test_slime_train_file_without_log_probs_has_no_old_log_probs(tmp_path):
    path = peer_dumps.slime_train(tmp_path, 0, 2)
    data = torch.load(path)
    for sample in data["samples"]:
        del sample["log_probs"]
    torch.save(data, path)
    recording = open_recording(tmp_path)
    assert recording.kinds() == ("prepared_trajectories",)
    assert recording.read(RecordKey("prepared_trajectories", 0)).extra["dp_shards"][1]["data_parallel_rank"] == 1


def test_miles_writes_one_train_file_a_rank(tmp_path):
    for rank in range(3):
        peer_dumps.miles_train(tmp_path, 2, rank, [2 * rank, 2 * rank + 1])
    recording = open_recording(tmp_path)
    assert recording.ranks("old_log_probs") == (0, 1, 2)
    record = recording.read(RecordKey("prepared_trajectories", 2, 2))
    assert [sample.run_id for sample in record.samples] == [4, 5]
    assert [row.tolist() for row in record.rows("loss_mask")] == [[0, 0, 1, 1, 1]] * 2


@pytest.mark.parametrize("padded", [0, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_miles_context_parallel_slices_are_put_together(tmp_path, padded, dtype):
    responses = [-torch.arange(1, length + 1, dtype=torch.float32).to(dtype) / 8 for length in (13, 4, 1)]
    peer_dumps.miles_slices(tmp_path, 3, 4, responses, prompt=6, padded=padded)
    recording = open_recording(tmp_path)
    for rank in range(4):
        record = recording.read(RecordKey("old_log_probs", 3, rank))
        assert [numbers(row) for row in record.rows("old_log_probs")] == [whole.tolist() for whole in responses]
        assert record.coordinates == {"cp": rank}
    advantages = [*recording.read(RecordKey("prepared_trajectories", 3, 1)).rows("advantages")]
    assert numbers(advantages[1])[6:] == [2 * value for value in responses[1].tolist()]


def numbers(row: np.ndarray | EncodedArray) -> list[float]:
    return (row.decode() if isinstance(row, EncodedArray) else row).tolist()


def test_miles_slices_stay_as_they_are_where_a_rank_is_missing(tmp_path):
    peer_dumps.miles_slices(tmp_path, 0, 2, [torch.ones(12)], prompt=4)
    (tmp_path / "train_data" / "0_1.pt").unlink()
    record = open_recording(tmp_path).read(RecordKey("old_log_probs", 0, 0))
    assert record.extra["cp_size"] == 2
    assert [len(row) for row in record.rows("old_log_probs")] == [4]


def test_a_damaged_rollout_is_named_and_the_train_file_beside_it_is_read(tmp_path):
    peer_dumps.slime_rollout(tmp_path, 0, [peer_dumps.slime_sample(0)])
    peer_dumps.slime_train(tmp_path, 0, 1)
    rollout = tmp_path / "rollout_data" / "0.pt"
    rollout.write_bytes(rollout.read_bytes()[:600])
    recording = open_recording(tmp_path)
    assert len(recording.read(RecordKey("old_log_probs", 0)).samples) > 0
    assert [(finding.id, finding.where) for finding in recording.summary().health] == [
        ("unreadable-file", str(rollout))
    ]


def test_miles_conversations_come_with_their_samples(tmp_path):
    peer_dumps.slime_rollout(tmp_path, 0, [peer_dumps.slime_sample(0), peer_dumps.slime_sample(1)])
    conversation = [{"role": "user", "content": "2+2"}]
    peer_dumps.lines(tmp_path / "trajectory" / "0.jsonl", [{"sample_index": 1, "messages": conversation}])
    recording = open_recording(tmp_path)
    first, second = recording.read(RecordKey("trajectory", 0)).fields["extra_fields"]
    assert "messages" not in first
    assert second["messages"] == conversation
    assert recording.verify() == []


def test_slime_samples_may_hold_tensors_instead_of_lists(tmp_path):
    sample = peer_dumps.slime_sample(0, tokens=torch.tensor([1, 2, 3, 4, 5], dtype=torch.int32))
    sample |= {"loss_mask": torch.ones(3), "rollout_log_probs": torch.full((3,), -1.0, dtype=torch.bfloat16)}
    peer_dumps.slime_rollout(tmp_path, 0, [sample])
    record = open_recording(tmp_path).read(RecordKey("trajectory", 0))
    assert record.dtype("tokens") == "int32"
    assert record.dtype("logprobs") == "bfloat16"
    assert record.array("logprobs").tolist() == [0, 0, -1, -1, -1]


def test_miles_policy_loss_dump(tmp_path):
    folder = tmp_path / "policy_loss_debug"
    folder.mkdir()
    sample = {
        "index": 0,
        "train_log_probs": torch.tensor([-1.0, float("nan")]),
        "old_log_probs": torch.tensor([-1.0, -2.0]),
    }
    sample |= {"advantages": torch.ones(2), "local_loss_mask": torch.ones(2), "total_length": 4}
    torch.save({"rank": 1, "call": 5, "samples": [sample], "pg_loss": torch.tensor([0.5])}, folder / "rank_1_call_5.pt")
    record = open_recording(tmp_path).read(RecordKey("is_loss_debug", 0, 1, 5))
    assert np.isnan(record.array("log_probs")).tolist() == [False, True]
    assert record.extra["pg_loss"].tolist() == [0.5]


def test_sglang_tells_layers_and_ranks_apart(tmp_path):
    peer_dumps.sglang(tmp_path, steps=2, ranks=3, layers=2, dtype=torch.bfloat16)
    recording = open_recording(tmp_path)
    assert (recording.steps(), recording.ranks(), recording.micros()) == ((0, 1), (0, 1, 2), (0, 1))
    record = recording.read(RecordKey("hidden", 1, 2, 1))
    assert record.dtype("value") == "bfloat16"
    assert record.array("value").tolist() == [[1, 1, 1]] * 2
    assert record.coordinates == {"tp": 2, "pp": 0}
    assert record.extra["layer_id"] == 1


def test_msprobe_gives_calls_parameters_and_gradients(tmp_path):
    peer_dumps.msprobe(tmp_path, steps=2, ranks=2)
    recording = open_recording(tmp_path)
    assert (recording.steps(), recording.ranks()) == ((0, 1), (0, 1))
    call = recording.read(RecordKey("forward_call", 1, 1, 0))
    assert call.fields["name"] == "Module.layers.0.fc.Linear.forward.0"
    assert set(call.fields) == {"name", "input.0", "input.mask", "output.0"}
    assert call.array("output.0").tolist() == [[4.0, 4.0]]
    for kind in ("param", "gradient"):
        record = recording.read(RecordKey(kind, 1, 0, 0))
        assert record.fields["param_name"] == "layers.0.fc.weight"
        assert record.array(kind).tolist() == [[2.0] * 3] * 2
    assert recording.read(RecordKey("backward_call", 0, 0, 0)).array("input.0").tolist() == [[1.0, 1.0]]


def test_msprobe_without_tensors_has_statistics(tmp_path):
    peer_dumps.msprobe(tmp_path, tensors=False)
    recording = open_recording(tmp_path)
    call = next(recording.records(kind="forward_call"))
    assert call.fields["output.0"]["mean"] == 3.0
    gradient = next(recording.records(kind="gradient"))
    assert "gradient" not in gradient.fields
    assert gradient.fields["norm"] == pytest.approx(6**0.5)


def test_sglang_forward_hook_and_old_names(tmp_path):
    hook = tmp_path / "hook" / "TP1_PP0_Rank1_pid77"
    hook.mkdir(parents=True)
    torch.save({"model.layers.0.mlp": torch.ones(2)}, hook / "Pass00003.pt")
    record = open_recording(tmp_path / "hook").read(RecordKey("forward_pass", 3, 1))
    assert record.fields["model.layers.0.mlp"].tolist() == [1, 1]
    old = tmp_path / "old"
    old.mkdir()
    torch.save(torch.zeros(2), old / "forward_pass_id=4___rank=0___name=x___dump_index=9.pt")
    assert open_recording(old).read(RecordKey("x", 4)).fields["value"].tolist() == [0, 0]


@pytest.mark.parametrize("method", ["tensor", "numpy"])
def test_verl_rollout_cache_loses_its_padding_and_nothing_else(tmp_path, method):
    peer_dumps.verl_batch(tmp_path, 4, mask=[[1, 1, 0], [1, 0, 1]], method=method)
    record = open_recording(tmp_path / "exp_proj").read(RecordKey("trajectory", 4))
    assert [row.tolist() for row in record.rows("tokens")] == [[5, 6, 7, 8], [3, 4, 5, 9, 9, 9]]
    assert [row.astype(int).tolist() for row in record.rows("loss_mask")] == [[0, 0, 1, 1], [0, 0, 0, 1, 0, 1]]
    np.testing.assert_allclose(list(record.rows("logprobs"))[1], [0, 0, 0, -0.3, -0.4, -0.5])
    assert record.array("reward").tolist() == [1.0, 0.25]
    assert record.samples == (SampleId("u0", 0), SampleId("u0", 1))
    assert record.fields["extra_fields"][0]["data_source"] == "gsm8k"
    assert record.extra["meta_info"] == {"temperature": 1.0}
    assert "prompts" not in record.extra, "prompts only repeat what input_ids hold"


def test_areal_padded_batch(tmp_path):
    batch = {
        "input_ids": torch.tensor([[1, 2, 3, 0], [1, 2, 3, 4]], dtype=torch.int32),
        "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.bool),
        "loss_mask": torch.tensor([[0, 0, 1, 0], [0, 0, 1, 1]], dtype=torch.int32),
        "logprobs": torch.full((2, 4), -0.5, dtype=torch.bfloat16),
        "versions": torch.tensor([[-1, -1, 3, -1], [-1, -1, 3, 4]], dtype=torch.int32),
        "rewards": torch.tensor([1.0, float("nan")]),
        "seqlens": torch.tensor([3, 4]),
    }
    torch.save(batch, tmp_path / "batch_step_12.pt")
    record = open_recording(tmp_path / "batch_step_12.pt").read(RecordKey("trajectory", 12))
    assert [row.tolist() for row in record.rows("tokens")] == [[1, 2, 3], [1, 2, 3, 4]]
    assert [row.tolist() for row in record.rows("policy_versions")] == [[-1, -1, 3], [-1, -1, 3, 4]]
    assert record.dtype("logprobs") == "bfloat16"
    assert np.isnan(record.array("reward")).tolist() == [False, True]
    assert record.extra["seqlens"].tolist() == [3, 4]


def test_areal_list_of_trajectories_with_missing_keys(tmp_path):
    whole = {"input_ids": torch.tensor([[1, 2, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.bool)}
    whole |= {"loss_mask": torch.tensor([[0, 1, 1]]), "rewards": torch.tensor([1.0])}
    bare = {name: whole[name] for name in ("input_ids", "loss_mask")}
    torch.save([whole, bare, None], tmp_path / "batch_data.pt")
    record = open_recording(tmp_path / "batch_data.pt").read(RecordKey("trajectory", 0))
    assert len(record.samples) == 2
    np.testing.assert_array_equal(record.array("reward"), [1.0, np.nan])


def test_areal_batch_of_rows_without_padding(tmp_path):
    batch = {"input_ids": [[1, 2, 3], [4, 5]], "loss_mask": [[0, 1, 1], [0, 1]], "rewards": [1.0, 0.5], "note": "x"}
    batch |= {"attention_mask": [[1, 1, 1], [1, 1]], "logprobs": [torch.zeros(3), torch.ones(2)]}
    torch.save(batch, tmp_path / "batch_data.pt")
    record = open_recording(tmp_path).read(RecordKey("trajectory", 0))
    assert [row.tolist() for row in record.rows("tokens")] == [[1, 2, 3], [4, 5]]
    assert [row.tolist() for row in record.rows("logprobs")] == [[0, 0, 0], [1, 1]]
    assert record.array("reward").tolist() == [1.0, 0.5]
    assert record.extra["note"] == ["x"]


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    path = peer_dumps.slime_rollout(tmp_path, 0, [peer_dumps.slime_sample(0)])
    path.write_bytes(path.read_bytes()[:-40])
    recording = open_recording(tmp_path)
    with pytest.raises(IncompleteDataError, match=r"0\.pt"):
        recording.read(RecordKey("trajectory", 0))
    assert [finding.id for finding in recording.verify()] == ["unreadable-file"]


def test_a_changed_byte_in_a_tensor_is_found_by_verify(tmp_path):
    peer_dumps.nexrl(tmp_path, ranks=1, micros=1)
    path = tmp_path / "forward_data" / "step_000000_rank0_micro0.pt"
    with zipfile.ZipFile(path) as archive:
        info = max(archive.infolist(), key=lambda item: item.file_size if "/data/" in item.filename else 0)
    raw = bytearray(path.read_bytes())
    place = raw.find(torch.load(path)["log_probs"].numpy().tobytes()[:8])
    raw[place] ^= 1
    path.write_bytes(raw)
    findings = [finding for finding in open_recording(tmp_path).verify() if finding.severity == "error"]
    assert [(finding.id, finding.where) for finding in findings] == [("corrupt-file", str(path))]
    assert info.filename.rpartition("/")[2] in json.dumps(findings[0].evidence) or findings[0].evidence
