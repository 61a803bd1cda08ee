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
    assert "only-drawn-tokens-trained" in failed(write(tmp_path, data))


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
