"""check on recordings made by our own recorder: silence when all holds, the right check when one thing does not."""

import numpy as np
import pytest

import rldbg
from rldbg.algorithms import grpo_advantages
from rldbg.analysis import check
from rldbg.analysis.checks import CHECKS
from rldbg.core import UsageError

GROUPS, PER_GROUP, PROMPT, RESPONSE = 3, 4, 3, 10


def step_data(step=0):
    """One healthy step: tokens, rewards, advantages and log probs that fit each other."""
    rng = np.random.default_rng(step)
    count = GROUPS * PER_GROUP
    groups = np.repeat(np.arange(GROUPS), PER_GROUP)
    tokens = rng.integers(5, 50, (count, PROMPT + RESPONSE))
    tokens[:, :PROMPT] = groups[:, None] + 60
    rewards = rng.integers(0, 2, count).astype(np.float32)
    rewards[0], rewards[1] = 0, 1
    log_probs = -rng.random((count, RESPONSE), dtype=np.float32) - 0.1
    advantages = grpo_advantages(rewards, groups)[:, None].repeat(RESPONSE, 1)
    return {
        "samples": [(f"g{group}", run) for group in range(GROUPS) for run in range(PER_GROUP)],
        "tokens": tokens,
        "mask": np.concatenate([np.zeros((count, PROMPT)), np.ones((count, RESPONSE))], 1).astype(np.int64),
        "rewards": rewards,
        "rollout": log_probs + 0.001,
        "old": log_probs,
        "new": log_probs.copy(),
        "entropy": -log_probs,
        "advantages": advantages,
        "versions": np.full((count, PROMPT + RESPONSE), step),
        "parameter": np.full((2, 4), step, np.float32) + np.arange(4, dtype=np.float32),
        "replica": None,
        "loss_scale": 1.0,
        "gradient_norm": 1.0,
    }


def write(root, *steps):
    with rldbg.Recorder(root) as recorder:
        for step, data in enumerate(steps):
            write_step(recorder, step, data)
    other = rldbg.Recorder(root, identity=rldbg.Identity(rank=1))
    with other as recorder:
        for step, data in enumerate(steps):
            value = data["parameter"] if data["replica"] is None else data["replica"]
            record_parameter(recorder, "param", step, value)
    return rldbg.open(root)


def record_parameter(recorder, kind, step, value, norm=1.0):
    facts = {"shape": list(value.shape), "dtype": "float32", "norm": norm, "mean": 0.0, "std": 0.0}
    recorder.record(kind, step=step, param_name="w", **{kind: value}, **facts)


def write_step(recorder, step, data):
    samples, zeros = data["samples"], np.zeros((len(data["samples"]), PROMPT), np.float32)
    recorder.record(
        "trajectory",
        step=step,
        samples=samples,
        policy_version=step,
        tokens=list(data["tokens"]),
        loss_mask=list(data["mask"]),
        reward=data["rewards"],
        logprobs=list(np.concatenate([zeros, data["rollout"]], 1)),
        policy_versions=list(data["versions"]),
    )
    recorder.record("old_log_probs", step=step, samples=samples, old_log_probs=data["old"])
    mask = np.ones(data["new"].shape, np.int64)
    recorder.record(
        "forward_data", step=step, samples=samples, log_probs=data["new"], entropy=data["entropy"], response_mask=mask
    )
    ratio = np.exp(data["new"] - data["old"])
    loss = -ratio * data["advantages"] * data["loss_scale"]
    recorder.record(
        "is_loss_debug",
        step=step,
        samples=samples,
        log_probs=data["new"],
        old_log_probs=data["old"],
        advantages=data["advantages"],
        prob_ratio=ratio,
        elementwise_loss=loss,
        effective_valid=mask,
        loss=0.0,
    )
    total = float(loss.mean()) if np.isfinite(loss).all() else float("nan")
    recorder.record("loss", step=step, samples=samples, loss=total, pg_loss=total, entropy_loss=0.0)
    record_parameter(recorder, "gradient", step, data["parameter"], data["gradient_norm"])
    record_parameter(recorder, "param", step, data["parameter"])


def test_a_healthy_recording_passes_in_silence(tmp_path):
    report = check(write(tmp_path, step_data(0), step_data(1)))
    assert report.findings == () and report.verdict == "pass"
    assert set(report.passed) == {"integrity", *(item.id for item in CHECKS)}


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


@pytest.mark.parametrize("name", [item.id for item in CHECKS])
def test_each_check_finds_what_it_is_for(tmp_path, name):
    report = check(write(tmp_path, step_data(0), spoil(name)), only=[name])
    assert {finding.id for finding in report.findings} == {name} and report.verdict == "fail"
    assert all("step 1" in finding.where for finding in report.findings)


def test_unknown_checks_name_the_nearest(tmp_path):
    recording = write(tmp_path, step_data(0))
    with pytest.raises(UsageError) as caught:
        check(recording, only=["replicas-agre"])
    assert "replicas-agree" in caught.value.hint
