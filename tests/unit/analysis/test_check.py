"""check on recordings made by our own recorder: silence when all holds, the right check when one thing does not."""

import numpy as np
import pytest

import rldbg
from rldbg.algorithms import grpo_advantages
from rldbg.analysis import check
from rldbg.analysis.checks import CHECKS
from rldbg.core import UsageError
from synthetic_steps import GROUPS, PER_GROUP, PROMPT, step_data, write

# Tested in test_weights.py, test_check_turns.py, test_routing.py and test_check_values.py.
NEED_OTHER_KINDS = {
    "advantages-follow-values",
    "engine-holds-what-was-sent",
    "history-is-append-only",
    "routing-agrees",
    "experts-share-the-load",
}


def test_a_healthy_recording_passes_in_silence(tmp_path):
    report = check(write(tmp_path, step_data(0), step_data(1)))
    assert report.findings == () and report.verdict == "pass"
    assert set(report.passed) | set(report.not_applicable) == {"integrity", *(item.id for item in CHECKS)}
    assert set(report.not_applicable) == {"gradients-agree", "padding-is-ignored", *NEED_OTHER_KINDS}


def test_log_probs_that_the_engine_did_not_return_are_found_where_old_ones_are_the_rollouts(tmp_path):
    data = step_data(1)
    data["rollout"][:, PROMPT] = 0
    data["old"] = data["rollout"].copy()
    report = check(write(tmp_path, step_data(0), data), only=["rollout-log-probs-present"])
    assert (
        report.findings[0].where.startswith("step 1 sample")
        and "a rollout log prob of 0" in report.findings[0].evidence[0]
    )


def test_a_guard_in_the_normalisation_that_is_too_large_is_named(tmp_path):
    data = step_data(1)
    groups = np.arange(len(data["rewards"])) // PER_GROUP
    data["rewards"] = np.random.default_rng(0).random(len(groups))
    centred = data["rewards"] - np.asarray([data["rewards"][groups == each].mean() for each in groups])
    variance = np.asarray([data["rewards"][groups == each].var(ddof=1) for each in groups])
    data["advantages"][:] = (centred / np.sqrt(variance + 0.05))[:, None]
    report = check(write(tmp_path, step_data(0), data), only=["advantages-follow-rewards"])
    assert "they fit this one: group mean and the root of the variance + 0.05" in report.findings[0].evidence


def spoil(name):
    data = step_data(1)
    if name == "log-probs-finite":
        data["new"][2, 3] = np.nan
    elif name == "log-probs-not-positive":
        data["old"][2, 3] = 0.5
    elif name == "rollout-log-probs-present":
        data["rollout"][2, 3] = 0
    elif name == "rollout-matches-trainer":
        data["rollout"] = data["rollout"] - 0.2
    elif name == "first-ratio-is-one":
        data["new"] = data["new"] - 0.01
    elif name == "entropy-not-negative":
        data["entropy"][2, 3] = -1
    elif name == "masks-non-empty":
        data["mask"][2] = 0
    elif name == "masks-cover-assistant-turns":
        data["mask"][2, -3:] = 0
    elif name == "rewards-finite":
        data["rewards"][2] = np.nan
    elif name == "group-shares-a-prompt":
        data["tokens"][2, 0] += 1
    elif name == "groups-informative":
        data["rewards"][:] = 1
    elif name == "policy-versions-fresh":
        data["versions"][2] = 0
    elif name == "responses-vary":
        data["tokens"][:PER_GROUP, PROMPT:] = 9
    elif name == "advantages-follow-rewards":
        data["advantages"][2] += 0.5
    elif name == "loss-follows-inputs":
        data["loss_scale"] = -1.0
    elif name == "losses-finite":
        data["loss_scale"] = np.inf
    elif name == "replicas-agree":
        data["replica"] = data["parameter"] + 1e-3
    elif name == "parameters-move":
        data["parameter"] = step_data(0)["parameter"]
    elif name == "gradients-sound":
        data["gradient_norm"] = float("nan")
    else:
        pytest.fail(f"{name} has no test")
    return data


# These need more than one step's plain data: test_check_batches.py has them.
ELSEWHERE = {
    *NEED_OTHER_KINDS,
    "only-sampled-tokens-trained",
    "samples-trained-once",
    "padding-is-ignored",
    "response-mask-follows",
    "gradients-agree",
    "policy-leaves-old-and-reference",
}


@pytest.mark.parametrize("name", [item.id for item in CHECKS if item.id not in ELSEWHERE])
def test_each_check_finds_what_it_is_for(tmp_path, name):
    report = check(write(tmp_path, step_data(0), spoil(name)), only=[name])
    assert {finding.id for finding in report.findings} == {name} and report.verdict == "fail"
    assert all("step 1" in finding.where for finding in report.findings)


def test_unknown_checks_name_the_nearest(tmp_path):
    recording = write(tmp_path, step_data(0))
    with pytest.raises(UsageError) as caught:
        check(recording, only=["replicas-agre"])
    assert "replicas-agree" in caught.value.hint


def test_the_former_name_of_a_check_is_accepted(tmp_path):
    report = check(write(tmp_path, step_data(0), step_data(1)), only=["only-drawn-tokens-trained"])
    assert report.passed == ("only-sampled-tokens-trained",)


def test_large_advantages_are_no_fault_of_the_loss(tmp_path):
    data = step_data(1)
    data["advantages"] = (data["advantages"] * 1e5).astype(np.float32)
    data["new"] = (data["new"] - np.float32(1e-3)).astype(np.float32)
    assert check(write(tmp_path, step_data(0), data), only=["loss-follows-inputs"]).findings == ()


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_a_loss_is_checked_without_the_ratio(tmp_path, scale):
    without = write(tmp_path, step_data(1) | {"loss_scale": scale, "left_out": ("prob_ratio",)})
    assert bool(check(without, only=["loss-follows-inputs"]).findings) == (scale < 0)


def test_a_loss_that_cannot_be_checked_says_what_is_missing(tmp_path):
    without = write(tmp_path, step_data(1) | {"left_out": ("old_log_probs", "elementwise_loss")})
    assert check(without, only=["loss-follows-inputs"]).passed, "losses, log probs and advantages are there"
    for file in tmp_path.rglob("loss/step_*"):
        file.unlink()
    report = check(rldbg.open(tmp_path), only=["loss-follows-inputs"])
    assert report.not_applicable["loss-follows-inputs"] == (
        "the is_loss_debug records have no old_log_probs and no elementwise_loss"
    )


@pytest.mark.parametrize("wrong", [False, True])
def test_advantages_of_clipped_rewards_follow_them(tmp_path, wrong):
    data = step_data(1)
    data["rewards"] = np.linspace(-3, 3, len(data["rewards"])).astype(np.float32)
    groups = np.repeat(np.arange(GROUPS), PER_GROUP)
    made = grpo_advantages(np.clip(data["rewards"], -1, 1), groups)
    made[5] += 0.1 * wrong
    data["advantages"] = made[:, None].repeat(data["old"].shape[1], 1)
    report = check(write(tmp_path, step_data(0), data), only=["advantages-follow-rewards"])
    assert bool(report.findings) == wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_advantages_over_a_baseline_of_earlier_steps(tmp_path, wrong):
    data = step_data(1)
    data["rewards"] = np.linspace(-3, 3, len(data["rewards"])).astype(np.float32) ** 3
    made = (data["rewards"] - 2.5) / 7
    made[5] += 0.1 * wrong
    data["advantages"] = made[:, None].repeat(data["old"].shape[1], 1)
    report = check(write(tmp_path, step_data(0), data), only=["advantages-follow-rewards"])
    assert bool(report.findings) == wrong


@pytest.mark.parametrize("several", [False, True])
def test_advantages_of_a_critic_are_not_held_against_rewards(tmp_path, several):
    """In one sample alone they are no critic's."""
    data = step_data(1)
    rows = slice(None) if several else slice(5, 6)
    data["advantages"][rows] += np.linspace(0.1, 0.3, data["old"].shape[1], dtype=np.float32)
    report = check(write(tmp_path, step_data(0), data), only=["advantages-follow-rewards"])
    assert bool(report.findings) != several


@pytest.mark.parametrize("wrong", [False, True])
def test_advantages_that_leave_one_out_and_are_normalised_over_the_batch(tmp_path, wrong):
    data = step_data(1)
    data["rewards"] = np.linspace(-3, 3, len(data["rewards"])).astype(np.float32) ** 3
    rows = data["rewards"].reshape(GROUPS, PER_GROUP).astype(np.float64)
    made = (rows - (rows.sum(1, keepdims=True) - rows) / (PER_GROUP - 1)).ravel()
    made = (made - made.mean()) / (made.std(ddof=1) + 1e-4)
    made[5] += 0.1 * wrong
    data["advantages"] = made[:, None].repeat(data["old"].shape[1], 1)
    report = check(write(tmp_path, step_data(0), data), only=["advantages-follow-rewards"])
    assert bool(report.findings) == wrong, report


@pytest.mark.parametrize("wrong", [False, True])
def test_advantages_of_functions_that_are_normalised_before_they_are_summed(tmp_path, wrong):
    data = step_data(1)
    groups, count = np.repeat(np.arange(GROUPS), PER_GROUP), len(data["rewards"])
    given = {"digits": np.linspace(0, 4, count) ** 2, "short": -np.arange(count) % 5.0}
    weights = {"digits": 1.0, "short": 3.0}
    summed = sum(weight * grpo_advantages(given[name], groups) for name, weight in weights.items())
    made = (summed - summed.mean()) / summed.std(ddof=1)
    made[5] += 0.1 * wrong
    data["rewards"] = sum(weight * given[name] for name, weight in weights.items()).astype(np.float32)
    data["advantages"] = made[:, None].repeat(data["old"].shape[1], 1)
    data["extra"] = [
        {
            "group_id": group,
            "run_id": run,
            "reward_weights": weights,
            "rewards": {name: given[name][row] for name in given},
        }
        for row, (group, run) in enumerate(data["samples"])
    ]
    report = check(write(tmp_path, step_data(0), data), only=["advantages-follow-rewards"])
    assert bool(report.findings) == wrong, report


@pytest.mark.parametrize("said", [False, True])
def test_samples_that_the_trainer_says_it_leaves_out_are_not_faults(tmp_path, said):
    data = step_data(1)
    data["mask"][2], data["rewards"][6] = 0, np.nan
    extra = [{"group_id": group, "run_id": run} for group, run in data["samples"]]
    if said:
        extra[2]["left_out"], extra[6]["left_out"] = "truncated", "no reward"
    data["extra"] = extra
    found = {each.id for each in check(write(tmp_path, step_data(0), data)).findings}
    assert ({"masks-non-empty", "rewards-finite"} <= found) != said
    assert "group-shares-a-prompt" not in found, "the policy's tokens say where the prompt ends"


@pytest.mark.parametrize("wrong", [False, True])
def test_advantages_may_be_scaled_by_samples_that_were_never_trained_on(tmp_path, wrong):
    """A run that ends within a step, or a trainer that drops groups after the batch was scaled."""
    names = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    rewards = np.array([0.0, 1.0, 5.0, 2.0], np.float32)
    advantages = np.array([-0.5, 0.5]) / rewards.std(ddof=1) + [0, 0.2 * wrong]
    ones = np.ones((2, 3), np.float32)
    with rldbg.Recorder(tmp_path) as recorder:
        tokens = [np.array([1, 2, 3])] * 4
        recorder.record("trajectory", step=0, samples=names, tokens=tokens, loss_mask=tokens, reward=rewards)
        recorder.record(
            "is_loss_debug", step=0, micro=0, samples=names[:2], log_probs=-ones, old_log_probs=-ones, loss=0.0,
            effective_valid=ones, advantages=(advantages[:, None] * ones).astype(np.float32),
        )  # fmt: skip
    report = check(rldbg.open(tmp_path), only=["advantages-follow-rewards"])
    assert bool(report.findings) == wrong, report


@pytest.mark.parametrize(("gap", "is_alarm"), [(0.02, False), (0.2, True)])
def test_a_ratio_to_the_engines_log_probs_may_be_off_by_its_rounding(tmp_path, gap, is_alarm):
    data = step_data(1)
    data["old"] = data["rollout"]
    data["new"] = (
        data["rollout"] + gap * np.sign(np.sin(np.arange(data["old"].size))).reshape(data["old"].shape)
    ).astype(np.float32)
    assert bool(check(write(tmp_path, data), only=["first-ratio-is-one"]).findings) == is_alarm


@pytest.mark.parametrize(("of_rollout", "stale"), [(True, True), (True, False), (False, True)])
def test_a_ratio_to_the_engines_log_probs_of_older_weights_is_what_corrects_for_them(tmp_path, of_rollout, stale):
    data = step_data(1)
    if of_rollout:
        data["old"] = data["rollout"]
    data["new"] = data["old"] - np.float32(0.4)
    data["versions"] = np.where(data["versions"] >= 0, data["versions"] - stale, -1)
    report = check(write(tmp_path, step_data(0), data), only=["first-ratio-is-one"])
    assert bool(report.findings) != (of_rollout and stale), report
