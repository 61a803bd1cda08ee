"""Checks use what a dump has: rewards and advantages of texts, and losses whose terms were not recorded."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import rldbg
from rldbg.algorithms import grpo_advantages
from rldbg.analysis import check

LONG = "one two three four five six seven eight nine ten"


def completions(folder, **changes):
    """TRL's own file: texts, a column per reward function, one advantage per completion."""
    rewards = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    columns = {
        "step": [3] * 6,
        "prompt": ["a", "a", "a", "b", "b", "b"],
        "completion": [f"answer {number}" for number in range(6)],
        "accuracy_reward": rewards,
        "advantage": grpo_advantages(np.array(rewards), np.array([0, 0, 0, 1, 1, 1])).tolist(),
    }
    (folder / "completions").mkdir()
    table = pyarrow.table(columns | changes)
    pyarrow.parquet.write_table(table, folder / "completions" / "completions_00003.parquet")
    return check(rldbg.open(folder))


READ = {"rewards-finite", "groups-informative", "advantages-follow-rewards", "responses-vary"}


def test_rewards_advantages_and_texts_of_trls_completions_are_checked(tmp_path):
    report = completions(tmp_path)
    assert report.findings == () and set(report.passed) >= READ


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"accuracy_reward": [1.0, float("inf"), 1.0, 1.0, 0.0, 0.0]}, "rewards-finite"),
        ({"accuracy_reward": [1.0] * 6}, "groups-informative"),
        ({"completion": [LONG] * 3 + ["x", "y", "z"]}, "responses-vary"),
    ],
)
def test_what_is_wrong_in_them_is_found(tmp_path, changes, found):
    assert found in {finding.id for finding in completions(tmp_path, **changes).findings}


def test_advantages_are_not_judged_by_groups_that_a_reader_made_up(tmp_path):
    report = completions(tmp_path, advantage=[0.3, 0.1, 0.2, 0.5, 0.7, 0.9])
    assert "groups were not recorded" in report.not_applicable["advantages-follow-rewards"]


def recorded(folder, reduce):
    """Two micro-batches of three samples with their losses, and no is_loss_debug."""
    numbers = np.random.default_rng(0)
    prompt, width = 2, 5
    lengths = np.array([[3, 5, 4], [5, 2, 3]])
    with rldbg.Recorder(folder) as recorder:
        rewards = np.array([1.0, 0.0, 0.5, 1.0, 0.0, 0.0])
        advantages = grpo_advantages(rewards, np.array([0, 0, 0, 1, 1, 1]))
        names = [(f"g{row // 3}", row % 3) for row in range(6)]
        old = -numbers.random((6, width)).astype(np.float32)
        mask = np.arange(width)[None] < lengths.reshape(-1, 1)
        rows = [np.arange(prompt + length) + 2 for length in lengths.reshape(-1)]
        masks = [np.r_[np.zeros(prompt, int), np.ones(length, int)] for length in lengths.reshape(-1)]
        spread = [np.r_[np.zeros(prompt), np.full(n, a)] for n, a in zip(lengths.reshape(-1), advantages, strict=True)]
        samples = {"step": 0, "samples": names}
        recorder.record(
            "prepared_trajectories", **samples, tokens=rows, loss_mask=masks, reward=rewards, advantages=spread
        )
        recorder.record("old_log_probs", **samples, old_log_probs=old)
        for micro in range(2):
            part = slice(3 * micro, 3 * micro + 3)
            new = old[part] + numbers.normal(0, 0.2, (3, width)).astype(np.float32)
            where = {"step": 0, "micro": micro, "samples": names[part]}
            recorder.record("forward_data", **where, log_probs=new, response_mask=mask[part].astype(np.int64))
            terms = -np.exp(new - old[part]) * advantages[part, None]
            recorder.record("loss", **where, loss=float(reduce(terms, mask[part])))
    return check(rldbg.open(folder), only=["loss-follows-inputs"])


def token_mean(terms, mask):
    return (terms * mask).sum() / mask.sum()


def sequence_mean(terms, mask):
    return ((terms * mask).sum(1) / mask.sum(1)).mean()


@pytest.mark.parametrize("reduce", [token_mean, sequence_mean, lambda *terms: 0.25 * sequence_mean(*terms)])
def test_a_loss_that_follows_from_its_tokens_passes_without_its_terms(tmp_path, reduce):
    assert recorded(tmp_path, reduce).passed == ("loss-follows-inputs",)


def test_a_loss_of_the_wrong_sign_is_found_without_its_terms(tmp_path):
    [finding] = recorded(tmp_path, lambda *terms: -0.25 * sequence_mean(*terms)).findings
    assert finding.id == "loss-follows-inputs" and "sign of -ratio" in finding.evidence[0]


@pytest.mark.parametrize("bonus", [0.3, -3.0])
def test_a_bonus_that_outweighs_the_policy_is_no_wrong_sign(tmp_path, bonus):
    report = recorded(tmp_path, lambda terms, mask: token_mean(terms, mask) * 0.01 - bonus * mask.sum() / 15)
    assert "none of the usual reductions" in report.not_applicable["loss-follows-inputs"]


def test_terms_that_cancel_have_no_sign(tmp_path):
    report = recorded(tmp_path, lambda *terms: -1e-4 * sequence_mean(*terms))
    assert "none of the usual reductions" in report.not_applicable["loss-follows-inputs"]


def test_a_loss_that_no_rule_explains_is_left_open(tmp_path):
    report = recorded(tmp_path, lambda terms, mask: token_mean(terms, mask) + mask.sum())
    assert "none of the usual reductions" in report.not_applicable["loss-follows-inputs"]


def two_steps(folder):
    with rldbg.Recorder(folder) as recorder:
        for step in range(2):
            mask = np.array([[0, 1, 1], [0, 1, 1]])
            samples = [("g0", 0), ("g0", 1)]
            tokens = np.array([[5, 6, 7], [5, 8, 9]])
            recorder.record(
                "trajectory", step=step, samples=samples, tokens=tokens, loss_mask=mask, reward=np.array([1.0, 0.0])
            )
    return folder


@pytest.mark.parametrize("only", [(), ("rewards-finite",)])
def test_a_damaged_file_is_named_and_the_other_steps_are_judged(tmp_path, only):
    damaged = sorted(two_steps(tmp_path / "run").rglob("trajectory/*"))[0]
    damaged.write_bytes(damaged.read_bytes()[:100])
    report = check(rldbg.open(tmp_path / "run"), only=only)
    unread = [finding for finding in report.findings if finding.id == "unreadable"]
    assert [finding.where for finding in unread] == ["step 0"]
    assert damaged.name in unread[0].evidence[0] and "rewards-finite" in unread[0].evidence[1]
    assert report.verdict == "fail" and "rewards-finite" in report.passed


def test_what_no_step_shows_is_not_judged(tmp_path):
    for damaged in two_steps(tmp_path / "run").rglob("trajectory/*"):
        damaged.write_bytes(damaged.read_bytes()[:100])
    report = check(rldbg.open(tmp_path / "run"), only=["rewards-finite"])
    assert report.passed == () and "cannot be read" in report.not_applicable["rewards-finite"]
