"""Layouts of JSON lines and parquet: verl, AReaL, prime-rl, NeMo RL, TRL."""

import builtins

import numpy as np
import peer_dumps
import pyarrow
import pyarrow.parquet
import pytest

from rldbg.core import IncompleteDataError, PrerequisiteError, SampleId, Severity
from rldbg.recording import RecordKey
from rldbg.recording import open as open_recording


def test_verl_generations_by_step(tmp_path):
    row = {"input": "user\n2+2", "output": "4", "gts": "4", "score": 1.0, "step": 7, "acc": True}
    peer_dumps.lines(tmp_path / "7.jsonl", [row, row | {"output": "5", "score": float("nan")}])
    peer_dumps.lines(tmp_path / "8.jsonl", [row | {"input": "other", "score": None}])
    recording = open_recording(tmp_path)
    assert recording.steps() == (7, 8)
    record = recording.read(RecordKey("trajectory", 7))
    assert record.samples[0].group_id == record.samples[1].group_id
    assert [sample.run_id for sample in record.samples] == [0, 1]
    assert np.isnan(record.array("reward")).tolist() == [False, True]
    assert record.fields["extra_fields"][1]["output"] == "5"
    assert np.isnan(recording.read(RecordKey("trajectory", 8)).array("reward")).all()


def test_verl_is_recognised_behind_an_empty_file_and_a_long_prompt(tmp_path):
    (tmp_path / "1.jsonl").touch()
    peer_dumps.lines(tmp_path / "2.jsonl", [{"step": 2, "score": "0.5", "input": "x" * 100_000, "output": "y"}])
    recording = open_recording(tmp_path)
    assert recording.layout.name == "verl"
    assert recording.read(RecordKey("trajectory", 2)).array("reward").tolist() == [0.5]
    assert recording.read(RecordKey("trajectory", 1)).samples == ()


def test_verl_samples_of_one_prompt_are_one_group(tmp_path):
    row = {"input": "a", "output": "b", "score": 0.0}
    peer_dumps.lines(tmp_path / "1.jsonl", [row | {"uid": f"a-b_c_{session}_0"} for session in range(2)])
    samples = open_recording(tmp_path).read(RecordKey("trajectory", 1)).samples
    assert samples == (SampleId("a-b_c", 0), SampleId("a-b_c", 1))


def test_verl_validation_folder(tmp_path):
    peer_dumps.lines(tmp_path / "validation_data" / "5.jsonl", [{"input": "a", "output": "b", "score": 0.0}])
    peer_dumps.lines(tmp_path / "rollout_data" / "5.jsonl", [{"input": "a", "output": "b", "score": 0.0}])
    assert open_recording(tmp_path).kinds() == ("trajectory", "validation")


def test_areal_is_recognised_behind_an_empty_task_file(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "1.jsonl").touch()
    rows = [{"sample_idx": 0, "task_id": 2, "reward": 1.0}, {"sample_idx": None, "task_id": 2, "reward": None}]
    peer_dumps.lines(tmp_path / "0" / "2.jsonl", rows)
    recording = open_recording(tmp_path)
    assert recording.layout.name == "areal"
    assert recording.samples() == (SampleId("2", 0), SampleId("2", 1))


def test_areal_task_files(tmp_path):
    row = {"task_id": 7, "sample_idx": 0, "seqlen": 6, "prompt_len": 3, "head_version": 0, "tail_version": 2}
    row |= {"reward": 1.0, "prompt": "2+2", "completion": "4"}
    peer_dumps.lines(tmp_path / "rollout" / "2" / "7.jsonl", [row, row | {"sample_idx": 1, "reward": 0.0}])
    peer_dumps.lines(tmp_path / "rollout" / "2" / "9.jsonl", [row | {"task_id": 9}])
    peer_dumps.lines(tmp_path / "rollout" / "3" / "10.jsonl", [row | {"task_id": 10}])
    recording = open_recording(tmp_path / "rollout")
    assert recording.layout.name == "areal"
    assert recording.steps() == (2, 3)
    assert recording.samples(step=2) == (SampleId("7", 0), SampleId("7", 1), SampleId("9", 0))
    assert recording.summary().samples == 4


def prime_batches(root, step, rank, batches):
    msgpack = pytest.importorskip("msgpack")
    path = root / "rollouts" / f"step_{step}" / f"rank_{rank}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgpack.packb(batches))
    return path


def test_prime_rl_batches_that_the_trainers_got(tmp_path):
    batches = [peer_dumps.prime_batch([3, 2]), peer_dumps.prime_batch([4], ref_logprobs=[-0.25, 0.0, -1.0, -2.0])]
    for rank in range(2):
        prime_batches(tmp_path, 7, rank, batches)
    recording = open_recording(tmp_path)
    assert (recording.layout.name, recording.kinds()) == ("prime_rl", ("prepared_trajectories",))
    assert recording.ranks("prepared_trajectories") == (0, 1)
    record = recording.read(RecordKey("prepared_trajectories", 7, 1))
    assert [row.tolist() for row in record.rows("tokens")] == [[100, 101, 102], [103, 104]]
    assert [row.tolist() for row in record.rows("logprobs")] == [[-0.125, -0.25, -0.375], [-0.5, -0.625]]
    assert [row.tolist() for row in record.rows("loss_mask")] == [[0, 1, 1], [0, 1]]
    assert [sample.run_id % 1_000_000 for sample in record.samples] == [0, 1]
    second = recording.read(RecordKey("prepared_trajectories", 7, 0, 1))
    assert [row.tolist() for row in second.extra["ref_logprobs"]] == [[-0.25, 0.0, -1.0, -2.0]]
    assert [sample.run_id for sample in second.samples] == [2]
    assert not [finding for finding in recording.verify() if finding.severity is Severity.ERROR]


def test_prime_rl_traces_are_paths_of_messages(tmp_path):
    episodes = [peer_dumps.prime_episode("g", 1.0), peer_dumps.prime_episode("h", 0.0, trainable=False)]
    for subset in ("all", "effective"):
        peer_dumps.lines(tmp_path / "rollouts" / "step_2" / "train" / subset / "traces.jsonl", episodes)
    evaluated = [peer_dumps.prime_episode("v", 0.5, advantages=False)]
    peer_dumps.lines(tmp_path / "rollouts" / "step_2" / "eval" / "all" / "traces.jsonl", evaluated)

    recording = open_recording(tmp_path)

    assert [(entry.kind, entry.step) for entry in recording.entries()] == [("trajectory", 2), ("validation", 2)]
    record = recording.read(RecordKey("trajectory", 2, 0, 0))
    assert [row.tolist() for row in record.rows("tokens")] == [[3, 4, 5, 6, 7, 8], [3, 4, 5, 9]]
    assert [row.tolist() for row in record.rows("loss_mask")] == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1]]
    assert [row.tolist() for row in record.rows("advantages")] == [[0, 0, 0, 0.5, 0.5, 0], [0, 0, 0, 0]]
    assert record.array("reward").tolist() == [2.0, 2.0]
    assert record.samples == (SampleId("g", 0), SampleId("g", 1))
    assert "advantages" not in recording.read(RecordKey("validation", 2, 0, 0)).fields


def test_prime_rl_batches_are_left_alone_beside_a_token_export(tmp_path):
    prime_batches(tmp_path, 3, 0, [peer_dumps.prime_batch([3])])
    peer_dumps.lines(tmp_path / "token_exports" / "step_3" / "rank_0.jsonl", [peer_dumps.prime_row(3, 0, 0, 0)])
    recording = open_recording(tmp_path)
    assert {entry.file for entry in recording.listing.entries} == {"token_exports/step_3/rank_0.jsonl"}
    assert recording.listing.unread == ()


@pytest.mark.parametrize(
    "content", [b"\x91\x99\x01", b"\xdd\xff\xff\xff\xff\x99", b"\x91\x99" + b"\x91" * 64, b"\x91\x99" + b"\xc1" * 9]
)
def test_a_damaged_prime_rl_batch_is_a_finding(tmp_path, content):
    whole = prime_batches(tmp_path, 1, 0, [peer_dumps.prime_batch([2])])
    (whole.parent / "rank_1.bin").write_bytes(content)
    assert {finding.where for finding in open_recording(tmp_path).verify()} >= {str(whole.parent / "rank_1.bin")} or (
        open_recording(tmp_path).listing.unread == ("rollouts/step_1/rank_1.bin",)
    )


def test_prime_rl_ranks_and_micro_batches(tmp_path):
    exports = tmp_path / "token_exports"
    for rank in range(2):
        rows = [peer_dumps.prime_row(3, rank, micro, place) for micro, place in ((0, 0), (0, 1), (2, 2))]
        peer_dumps.lines(exports / "step_3" / f"rank_{rank}.jsonl", rows)
    (exports / "step_3" / "STABLE").touch()
    recording = open_recording(exports)
    assert recording.layout.name == "prime_rl"
    assert (recording.ranks(), recording.micros()) == ((0, 1), (0, 2))
    forward = recording.read(RecordKey("forward_data", 3, 1, 0))
    assert np.isnan(next(iter(forward.rows("log_probs")))).tolist() == [False, False, False, True]
    assert len(forward.extra["mismatch_kl"]) == 2
    loss = recording.read(RecordKey("is_loss_debug", 3, 1, 0))
    assert next(iter(loss.rows("effective_valid"))).tolist() == [False, False, True, False]
    ids = recording.samples(step=3, kind="prepared_trajectories")
    assert len(ids) == 6, "ids are unique within the step"
    assert recording.verify() == []


def test_prime_rl_keeps_keys_it_does_not_know(tmp_path):
    row = peer_dumps.prime_row(0, 0, 0, 0, tags=["a", "b"], reward=1.0, note={"x": 1})
    peer_dumps.lines(tmp_path / "step_0" / "rank_0.jsonl", [row])
    extra = open_recording(tmp_path).read(RecordKey("forward_data", 0)).extra
    assert (extra["tags"], extra["note"]) == ([["a", "b"]], [{"x": 1}])
    assert extra["reward"].values.tolist() == [1.0]


def test_prime_rl_step_without_its_marker_is_unfinished(tmp_path):
    for step in (1, 2):
        peer_dumps.lines(tmp_path / f"step_{step}" / "rank_0.jsonl", [peer_dumps.prime_row(step, 0, 0, 0)])
    (tmp_path / "step_1" / "STABLE").touch()
    findings = open_recording(tmp_path).verify()
    assert [(finding.id, finding.where) for finding in findings] == [("unfinished-writer", str(tmp_path / "step_2"))]


def test_nemo_rl_training_and_validation(tmp_path):
    peer_dumps.lines(tmp_path / "train_data_step1.jsonl", [peer_dumps.nemo_row(0), peer_dumps.nemo_row(1)])
    peer_dumps.lines(tmp_path / "val_data_step1.jsonl", [{"content": ["a"], "rewards": [0.5], "idx": 0}])
    recording = open_recording(tmp_path)
    assert recording.kinds() == ("prepared_trajectories", "old_log_probs", "validation")
    record = recording.read(RecordKey("prepared_trajectories", 1))
    assert [row.tolist() for row in record.rows("tokens")] == [[1, 2, 3, 4], [1, 2, 4, 4]]
    assert record.fields["extra_fields"][0]["padding"] == 1
    old = recording.read(RecordKey("old_log_probs", 1))
    assert old.samples == record.samples
    assert next(iter(old.rows("old_log_probs"))).tolist() == [0, 0, -0.11, -0.2]
    assert recording.read(RecordKey("validation", 1)).array("reward").tolist() == [0.5]


def test_nemo_rl_without_optional_keys(tmp_path):
    peer_dumps.lines(tmp_path / "train_data_step2.jsonl", [{"content": ["q"], "input_lengths": [3], "idx": 0}])
    recording = open_recording(tmp_path)
    assert recording.keys() == (RecordKey("prepared_trajectories", 2),)
    assert recording.read(recording.keys()[0]).fields["extra_fields"] == [{"content": "q"}]


def test_nemo_rl_dynamic_sampling_has_the_rewards_of_the_rows_it_kept(tmp_path):
    """`rewards` are those of all that was sampled, in another order and number than the rows."""
    kept = [peer_dumps.nemo_row(i, rewards=[0.0], filtered_rewards=[1.0 + i]) for i in range(2)]
    surplus = {name: [] for name in kept[0]} | {"rewards": [0.5], "idx": 2}
    peer_dumps.lines(tmp_path / "train_data_step1.jsonl", [*kept, surplus])
    recording = open_recording(tmp_path)
    record = recording.read(RecordKey("prepared_trajectories", 1))
    assert record.array("reward").tolist() == [1.0, 2.0]
    assert record.fields["tokens"].lengths.tolist() == [4, 4]
    assert record.extra["unfiltered_rewards"] == [0.0, 0.0, 0.5]
    assert recording.summary().samples == 2


def test_nemo_rl_lone_numbers_and_rows_outside_of_a_list(tmp_path):
    single = peer_dumps.nemo_row(0, input_lengths=1, token_ids=[7], token_loss_mask=[1], advantages=0.5)
    single |= {"generation_logprobs": [-0.1], "prev_logprobs": [-0.2]}
    several = peer_dumps.nemo_row(1, advantages=[[0.25]])
    peer_dumps.lines(tmp_path / "train_data_step1.jsonl", [single, several])
    recording = open_recording(tmp_path)
    record = recording.read(RecordKey("prepared_trajectories", 1))
    assert [row.tolist() for row in record.rows("tokens")] == [[7], [1, 2, 4, 4]]
    assert record.array("advantages").tolist() == [0.5, 0.25]
    assert next(iter(recording.read(RecordKey("old_log_probs", 1)).rows("old_log_probs"))).tolist() == [-0.2]


def _parquet(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def test_trl_completions(tmp_path):
    columns = {"step": [3, 3], "prompt": ["a", "a"], "completion": ["x", "y"], "format_reward": [1.0, 0.0]}
    columns |= {"accuracy_reward": [0.5, float("nan")], "length": [3, 4], "advantage": [0.7, -0.7]}
    _parquet(tmp_path / "completions" / "completions_00003.parquet", columns)
    recording = open_recording(tmp_path)
    record = recording.read(RecordKey("prepared_trajectories", 3))
    assert record.array("reward").tolist() == [1.5, 0.0]
    assert record.array("advantages").tolist() == [0.7, -0.7]
    assert record.extra["reward_columns"] == ["format_reward", "accuracy_reward"]
    assert record.fields["extra_fields"][0]["length"] == 3
    assert [sample.run_id for sample in record.samples] == [0, 1]
    assert recording.summary().samples == 2


def test_trl_reward_functions_that_gave_nothing_do_not_count(tmp_path):
    """TRL sums what there is; a completion that no function rewarded has no reward."""
    columns = {"prompt": ["a"] * 3, "math_reward": [1.0, None, None], "format_reward": [0.5, 0.25, float("nan")]}
    _parquet(tmp_path / "completions_00001.parquet", columns)
    record = open_recording(tmp_path).read(RecordKey("prepared_trajectories", 1))
    np.testing.assert_array_equal(record.array("reward"), [1.5, 0.25, np.nan])


def test_trl_reward_that_cannot_be_told_is_left_out(tmp_path):
    _parquet(tmp_path / "completions_00001.parquet", {"prompt": ["a"], "accuracy": [1.0], "length": [3.0]})
    record = open_recording(tmp_path).read(RecordKey("prepared_trajectories", 1))
    assert "reward" not in record.fields
    assert record.fields["extra_fields"] == [{"prompt": "a", "accuracy": 1.0, "length": 3.0}]


def test_trl_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    _parquet(tmp_path / "completions_00001.parquet", {"prompt": ["a"], "reward": [1.0]})
    real_import = builtins.__import__

    def no_pyarrow(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    recording = open_recording(tmp_path)
    monkeypatch.setattr(builtins, "__import__", no_pyarrow)
    with pytest.raises(PrerequisiteError) as error:
        recording.read(recording.keys()[0])
    assert "pip install" in error.value.hint


@pytest.mark.parametrize("tail", [b'{"input": "a", "outp', b"\xff\xfe\n", b"[1, 2]\n", b'{"a": ' + b"[" * 100_000])
def test_a_damaged_line_is_named_with_its_number(tmp_path, tail):
    path = tmp_path / "1.jsonl"
    path.write_bytes(b'{"input": "a", "output": "b"}\n' + tail)
    with pytest.raises(IncompleteDataError, match=r"1\.jsonl: line 2 "):
        next(open_recording(tmp_path).records())
