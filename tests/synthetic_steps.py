"""A small healthy recording made by our own recorder, for tests to spoil one thing at a time."""

import numpy as np

import rldbg
from rldbg.algorithms import grpo_advantages

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
        "versions": np.concatenate([np.full((count, PROMPT), -1), np.full((count, RESPONSE), step)], 1),
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
        **({"extra_fields": data["extra"]} if "extra" in data else {}),
    )
    recorder.record("old_log_probs", step=step, samples=samples, old_log_probs=data["old"])
    mask = np.ones(data["new"].shape, np.int64)
    recorder.record(
        "forward_data", step=step, samples=samples, log_probs=data["new"], entropy=data["entropy"], response_mask=mask
    )
    ratio = np.exp(data["new"] - data["old"])
    loss = -ratio * data["advantages"] * data["loss_scale"]
    of_loss = {
        "log_probs": data["new"],
        "old_log_probs": data["old"],
        "advantages": data["advantages"],
        "prob_ratio": ratio,
        "elementwise_loss": loss,
        "effective_valid": mask,
        "loss": 0.0,
    }
    left_out = data.get("left_out", ())
    kept = {name: value for name, value in of_loss.items() if name not in left_out}
    recorder.record("is_loss_debug", step=step, samples=samples, **kept)
    total = float(loss.mean()) if np.isfinite(loss).all() else float("nan")
    facts = {"extra_info": {"form": data["form"]}} if "form" in data else {}
    recorder.record("loss", step=step, samples=samples, loss=total, pg_loss=total, entropy_loss=0.0, **facts)
    record_parameter(recorder, "gradient", step, data["parameter"], data["gradient_norm"])
    record_parameter(recorder, "param", step, data["parameter"])
