"""What a rerun of a verl step is made from: the batch in the ranks' order, and parameters put together from shards."""

from types import SimpleNamespace

import numpy as np
import pytest

from rldbg.core import Identity, SampleId
from rldbg.frameworks.rerun import parameters_after
from rldbg.frameworks.verl.rerun import merged_shards, recorded_rows
from rldbg.recording import Ragged, Recorder
from rldbg.recording import open as open_recording

SAMPLES = [SampleId("7#2", 0), SampleId("7#2", 1), SampleId("9#2", 0), SampleId("9#2", 1)]
TOKENS = [[1, 2, 3, 4], [1, 2, 5], [6, 7, 8, 9, 10], [6, 7]]
MASKS = [[0, 0, 1, 1], [0, 0, 1], [0, 0, 0, 1, 1], [0, 0]]


def record_rank(folder, rank, micros, *, mini_batch=0):
    recorder = Recorder(folder, identity=Identity(rank=rank), kinds=("is_loss_debug", "forward_data"))
    for micro, rows in enumerate(micros):
        place = {"step": 2, "micro": micro, "mini_batch": mini_batch, "samples": [row[0] for row in rows]}
        mask = np.array([row[1] for row in rows])
        numbers = np.full(mask.shape, rank + 1, np.float32)
        values = {"log_probs": numbers, "old_log_probs": numbers, "advantages": -numbers}
        recorder.record("is_loss_debug", **place, **values, effective_valid=mask, loss=0.5)
        recorder.record(
            "forward_data", **place, log_probs=numbers, ref_log_probs=10 * numbers, response_mask=mask, entropy=numbers
        )
    recorder.close()


@pytest.fixture
def recording(tmp_path):
    """Two ranks; the first trained token of one response is its second, and one sample is not trained on at all."""
    driver = Recorder(tmp_path / "recording", identity=Identity(rank=0), kinds=("trajectory",))
    driver.record(
        "trajectory",
        step=2,
        samples=SAMPLES,
        tokens=Ragged.from_rows(TOKENS, np.int64),
        loss_mask=Ragged.from_rows(MASKS, np.int64),
        reward=np.zeros(4, np.float32),
    )
    driver.close()
    filled = (SampleId("padding#2", 0), [0, 0])
    record_rank(tmp_path / "recording", 0, [[(SAMPLES[2], [0, 1, 1]), (SAMPLES[3], [0, 0, 0])], [(SAMPLES[0], [1, 1])]])
    record_rank(tmp_path / "recording", 1, [[(SAMPLES[1], [1, 0]), filled]])
    return open_recording(tmp_path)


def test_the_batch_has_the_order_and_the_numbers_of_the_ranks(recording):
    rows = recorded_rows(recording, 2)
    assert [row.sample for row in rows] == [SAMPLES[2], SAMPLES[3], SAMPLES[0], SAMPLES[1], SampleId("padding#2", 0)]
    assert [(row.tokens.tolist(), row.start) for row in rows[:4]] == [
        (TOKENS[2], 2),
        (TOKENS[3], 1),
        (TOKENS[0], 2),
        (TOKENS[1], 2),
    ]
    responses = [{name: values.tolist() for name, values in row.of_response.items()} for row in rows]
    assert responses[0] == {
        "response_mask": [0, 1, 1],
        "old_log_probs": [1, 1, 1],
        "advantages": [-1, -1, -1],
        "ref_log_prob": [10, 10, 10],
    }
    assert responses[3] == {"response_mask": [1], "old_log_probs": [2], "advantages": [-2], "ref_log_prob": [20]}
    assert responses[4]["response_mask"] == [0]


def test_only_the_first_optimizer_step_is_made_again(recording, tmp_path):
    record_rank(tmp_path / "recording", 2, [[(SAMPLES[0], [1, 1])]], mini_batch=1)
    assert len(recorded_rows(open_recording(tmp_path), 2)) == 5


def test_a_sample_without_tokens_is_refused(recording, tmp_path):
    record_rank(tmp_path / "recording", 2, [[(SampleId("8#2", 0), [1, 1])]])
    with pytest.raises(SystemExit, match=r"sample 8#2.* has no trajectory"):
        recorded_rows(open_recording(tmp_path), 2)
    with pytest.raises(SystemExit, match="step 3 has no is_loss_debug records"):
        recorded_rows(recording, 3)


def test_parameters_are_put_together_from_the_shards_of_the_last_optimizer_step(tmp_path):
    whole = np.arange(10, dtype=np.float32).reshape(5, 2)
    for rank, part in enumerate((whole[:3], whole[3:])):
        recorder = Recorder(tmp_path / "recording", identity=Identity(rank=rank), kinds=("param",))
        facts = {"global_shape": [5, 2], "placements": ["Shard(dim=0)"], "mesh_shape": [2], "mesh_coordinate": [rank]}
        for mini_batch, values in enumerate((-part, part)):
            about = facts | {"param_name": "weight", "shape": list(part.shape), "dtype": "torch.float32"}
            recorder.record("param", step=1, mini_batch=mini_batch, **about, param=values)
        recorder.close()
    recording = open_recording(tmp_path)
    np.testing.assert_array_equal(parameters_after(recording, 1, ["weight"])["weight"], whole)
    with pytest.raises(SystemExit, match=r"not all parameters of step 1 are recorded \(bias\)"):
        parameters_after(recording, 1, ["bias"])


def test_the_shards_of_a_checkpoint_are_put_together(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.distributed.tensor import Replicate, Shard

    whole = torch.arange(12.0).reshape(4, 3)
    for rank, part in enumerate(whole.split(2)):
        sharded = SimpleNamespace(placements=(Shard(0),), _local_tensor=part)
        shared = SimpleNamespace(placements=(Replicate(),), _local_tensor=whole[0])
        torch.save({"a": sharded, "b": shared, "c": whole}, tmp_path / f"model_world_size_2_rank_{rank}.pt")
    merged = merged_shards(tmp_path)
    assert torch.equal(merged["a"], whole)
    assert torch.equal(merged["b"], whole[0])
    assert torch.equal(merged["c"], whole)
    (tmp_path / "model_world_size_2_rank_0.pt").unlink()
    with pytest.raises(SystemExit, match="all its ranks"):
        merged_shards(tmp_path)
