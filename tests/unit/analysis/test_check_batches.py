"""Checks on masks, passes and ranks: silent on a healthy recording, loud on each spoiled one."""

import numpy as np
import pytest

import rldbg
from rldbg.analysis import check
from synthetic_steps import PROMPT, RESPONSE, record_parameter, step_data, write


def failed(recording):
    return {finding.id for finding in check(recording).findings}


@pytest.mark.parametrize("place", [PROMPT - 1, PROMPT + RESPONSE - 1])
def test_masks_that_are_not_what_the_policy_drew(tmp_path, place):
    data = step_data()
    data["mask"][:, place] = 1 - data["mask"][:, place]
    assert "only-sampled-tokens-trained" in failed(write(tmp_path, data))


def test_a_sample_that_is_trained_twice_and_one_that_is_not(tmp_path):
    recording = write(tmp_path, step_data())
    assert "samples-trained-once" not in failed(recording)
    with rldbg.Recorder(tmp_path, identity=rldbg.Identity(rank=2)) as recorder:
        data = step_data()
        ones = np.ones((1, RESPONSE), np.int64)
        recorder.record(
            "forward_data",
            step=0,
            samples=data["samples"][:1],
            log_probs=data["new"][:1],
            entropy=data["entropy"][:1],
            response_mask=ones,
        )
    assert "samples-trained-once" in failed(rldbg.open(tmp_path))


def test_ranks_with_gradients_of_their_own(tmp_path):
    write(tmp_path, step_data())
    with rldbg.Recorder(tmp_path, identity=rldbg.Identity(rank=1)) as recorder:
        record_parameter(recorder, "gradient", 0, step_data()["parameter"] + 1)
    assert "gradients-agree" in failed(rldbg.open(tmp_path))


def _record_shards(folder, facts, values):
    """One parameter and its gradient, a part of it on each rank."""
    for rank, (fact, value) in enumerate(zip(facts, values, strict=True)):
        with rldbg.Recorder(folder, identity=rldbg.Identity(rank=rank)) as recorder:
            for kind in ("param", "gradient"):
                recorder.record(kind, step=0, param_name="w", **{kind: value}, shape=list(value.shape), **fact)


def _placed(placements, coordinate):
    return {"placements": placements, "global_shape": [4], "mesh_shape": [2, 2], "mesh_coordinate": coordinate}


def test_shards_of_one_tensor_are_not_replicas_but_equal_shards_are(tmp_path):
    """Hybrid sharding: the first axis of the mesh replicates, the second cuts."""
    facts = [_placed(["Replicate()", "Shard(dim=0)"], [row, column]) for row in (0, 1) for column in (0, 1)]
    halves = [np.zeros(2, np.float32), np.ones(2, np.float32)]
    _record_shards(tmp_path / "healthy", facts, [*halves, *halves])
    assert not failed(rldbg.open(tmp_path / "healthy")) & {"gradients-agree", "replicas-agree"}
    _record_shards(tmp_path / "drifted", facts, [*halves, halves[0], halves[1] + 1])
    assert failed(rldbg.open(tmp_path / "drifted")) >= {"gradients-agree", "replicas-agree"}


@pytest.mark.parametrize(
    "fact",
    [
        {"placements": ["Shard(dim=0)"], "global_shape": [4]},
        {"placements": ["FlatShard()"]},
        _placed(["Partial(sum)", "Replicate()"], [0, 0]),
    ],
    ids=["without coordinates", "FSDP1", "not reduced"],
)
def test_parts_that_cannot_be_told_apart_are_not_judged(tmp_path, fact):
    _record_shards(tmp_path, [fact, fact], [np.zeros(2, np.float32), np.ones(2, np.float32)])
    report = check(rldbg.open(tmp_path))
    assert {"gradients-agree", "replicas-agree"} <= set(report.not_applicable)


@pytest.mark.parametrize("attended, positions", [([1, 1, 1, 1], [0, 1, 2, 3]), ([0, 1, 1, 1], [0, 0, 1, 3])])
def test_padding_and_positions(tmp_path, attended, positions):
    data = step_data()
    write(tmp_path, data)
    length = PROMPT + RESPONSE
    attention = np.ones((1, length + 1), np.int64)
    attention[0, :4] = attended
    ids = np.arange(length + 1)[None] - 1
    ids[0, :4] = positions
    ids[0, 4:] = np.arange(length - 3) + positions[-1] + 1
    with rldbg.Recorder(tmp_path, identity=rldbg.Identity(rank=3)) as recorder:
        recorder.record(
            "batch_inputs",
            step=0,
            samples=data["samples"][:1],
            input_ids=np.zeros_like(ids),
            attention_mask=attention,
            position_ids=ids,
        )
    assert "padding-is-ignored" in failed(rldbg.open(tmp_path))


def forward(recorder, data, log_probs, **place):
    mask = place.pop("mask", np.ones(log_probs.shape, np.int64))
    recorder.record(
        "forward_data",
        step=0,
        samples=data["samples"],
        log_probs=log_probs,
        entropy=data["entropy"],
        response_mask=mask,
        **place,
    )


def test_a_mask_in_the_loss_that_is_not_the_trajectories(tmp_path):
    data = step_data()
    write(tmp_path, data)
    mask = np.ones(data["new"].shape, np.int64)
    mask[2, 5] = 0
    with rldbg.Recorder(tmp_path, identity=rldbg.Identity(rank=2)) as recorder:
        forward(recorder, data, data["new"], mask=mask)
    assert "response-mask-follows" in failed(rldbg.open(tmp_path))


def test_old_log_probs_that_follow_the_policy(tmp_path):
    data = step_data()
    write(tmp_path, data)
    moved = data["new"] - 0.1
    with rldbg.Recorder(tmp_path, identity=rldbg.Identity(rank=2)) as recorder:
        for epoch, log_probs in enumerate((data["new"], moved)):
            forward(recorder, data, log_probs, epoch=epoch)
            recorder.record(
                "is_loss_debug",
                step=0,
                epoch=epoch,
                samples=data["samples"],
                log_probs=log_probs,
                old_log_probs=log_probs,
                advantages=data["advantages"],
                prob_ratio=np.ones_like(log_probs),
                elementwise_loss=-data["advantages"],
                effective_valid=np.ones(log_probs.shape, np.int64),
                loss=0.0,
            )
    assert "policy-leaves-old-and-reference" in failed(rldbg.open(tmp_path))
