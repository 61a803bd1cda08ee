"""Conversations of several turns: trained tokens begin with what the engine was asked, and answers are trained on."""

import numpy as np
import pytest

import rldbg
from rldbg.analysis import check, compare
from rldbg.trainer.rollout import turn_facts

TOKENS = np.arange(10, 22)
SPANS = ((3, 5), (7, 9), (10, 12))


def turns(rewrite=None):
    """What the engine was asked in three turns; the prompt of one is rewritten."""
    prompts = [TOKENS[:start].copy() for start, _ in SPANS]
    if rewrite is not None:
        prompts[rewrite][1] += 1
    return [turn_facts(prompt, TOKENS[start:end]) for prompt, (start, end) in zip(prompts, SPANS, strict=True)]


def record(folder, *, asked, mask=None, versions=False):
    own = np.zeros(len(TOKENS), np.int64)
    for start, end in SPANS:
        own[start:end] = 1
    shown = own if mask is None else mask
    more = {"policy_versions": [np.where(own, 0, -1)] * 2} if versions else {}
    with rldbg.Recorder(folder) as recorder:
        recorder.record(
            "trajectory",
            step=0,
            samples=[("g", 0), ("g", 1)],
            policy_version=0,
            tokens=[TOKENS, TOKENS],
            loss_mask=[own, shown],
            reward=np.zeros(2, np.float32),
            extra_fields=[{"turns": turns()}, {"turns": asked}],
            **more,
        )
    return rldbg.open(folder)


def test_a_history_that_only_grows_passes(tmp_path):
    report = check(record(tmp_path, asked=turns()), only=["history-is-append-only", "masks-cover-assistant-turns"])
    assert report.findings == () and len(report.passed) == 2


@pytest.mark.parametrize("turn", [1, 2])
def test_the_turn_whose_history_was_rewritten_is_named(tmp_path, turn):
    recording = record(tmp_path, asked=turns(rewrite=turn))
    (finding,) = check(recording, only=["history-is-append-only"]).findings
    assert finding.where == "step 0 sample g/1" and f"in turn {turn + 1} " in finding.evidence[0]


@pytest.mark.parametrize("versions", [True, False])
def test_an_answer_that_is_not_trained_on_is_found_and_a_sample_left_out_is_not(tmp_path, versions):
    missing = np.zeros(len(TOKENS), np.int64)
    missing[3:5] = 1
    recording = record(tmp_path / "a", asked=turns(), mask=missing, versions=versions)
    (finding,) = check(recording, only=["masks-cover-assistant-turns"]).findings
    assert "4 of 6 tokens that the policy sampled are not trained on, from token 7 on" in finding.evidence[0]
    left_out = record(tmp_path / "b", asked=turns(), mask=missing * 0, versions=versions)
    assert check(left_out, only=["masks-cover-assistant-turns"]).findings == ()


def test_compare_names_a_rewritten_history(tmp_path):
    clean, spoiled = record(tmp_path / "a", asked=turns()), record(tmp_path / "b", asked=turns(rewrite=1))
    result = compare(clean, spoiled)
    assert [item.id for item in result.explanations] == ["history-rewritten"]
    assert result.explanations[0].parameters["turn"] == 2


@pytest.mark.parametrize("wrong", [False, True])
def test_earlier_sequences_of_a_rollout_are_none_of_the_group(tmp_path, wrong):
    """The first rollout gave two sequences; both have the reward and advantage of its last one."""
    names = [("g/0", 0), ("g", 0), ("g", 1)]
    said = [{"output": 0, "outputs": 2}, {"output": 1, "outputs": 2}, {}]
    rewards = np.array([0.0, 0.0, 1.0], np.float32)
    half = 2**-0.5
    advantages = np.array([-half, -half, half + 0.1 * wrong])
    tokens = [np.array([1, 2, 3]), np.array([1, 2, 3, 4, 5]), np.array([1, 2, 6])]
    masks = [np.array([0, 0, 1]), np.array([0, 0, 0, 0, 1]), np.array([0, 0, 1])]
    with rldbg.Recorder(tmp_path) as recorder:
        facts = {"tokens": tokens, "loss_mask": masks, "reward": rewards, "extra_fields": said}
        spread = [value * mask.astype(np.float32) for value, mask in zip(advantages, masks, strict=True)]
        recorder.record("prepared_trajectories", step=0, samples=names, **facts, advantages=spread)
    report = check(rldbg.open(tmp_path), only=["advantages-follow-rewards", "group-shares-a-prompt"])
    assert [finding.id for finding in report.findings] == ["advantages-follow-rewards"] * wrong, report
