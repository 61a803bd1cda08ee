"""Hypotheses about what the rollout gave the trainer: seeds, masks, rewards, policy versions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, largest


def seed(evidence: Evidence) -> Iterator[Explanation]:
    """Same prompts, other responses in most samples: the sampler drew other random numbers."""
    differ = same_prompt = 0
    for a, b in evidence.samples:
        length = a.prompt_length
        if length == b.prompt_length and np.array_equal(a.tokens[:length], b.tokens[:length]):
            same_prompt += 1
            differ += not np.array_equal(a.tokens, b.tokens)
    if same_prompt and same_prompt == len(evidence.samples) and differ >= max(2, same_prompt // 3):
        yield Explanation(
            "seed",
            f"{differ} of {same_prompt} samples have other responses to the same prompts: other random numbers (seed)",
            0.0,
            0.0,
            {"samples_that_differ": differ, "samples": same_prompt},
            differ / same_prompt,
        )


def prompt_in_mask(evidence: Evidence) -> Iterator[Explanation]:
    """One side trains on the prompt too: its mask is the other's plus everything before it."""
    for label, first, second in (("B", 0, 1), ("A", 1, 0)):
        wrong = changed = 0
        for pair in evidence.samples:
            narrow, wide = pair[first], pair[second]
            if len(narrow.tokens) != len(wide.tokens) or np.array_equal(narrow.loss_mask, wide.loss_mask):
                continue
            changed += 1
            extra = (wide.loss_mask != 0) & (narrow.loss_mask == 0)
            wrong += not (
                extra[: narrow.prompt_length].any()
                and np.array_equal(wide.loss_mask[narrow.prompt_length :], narrow.loss_mask[narrow.prompt_length :])
            )
        if changed and not wrong:
            yield Explanation(
                "prompt-in-mask", f"{label}'s loss mask also covers prompt tokens", 0.0, 0.0, {"side": label}
            )


def mask_off_at_end(evidence: Evidence) -> Iterator[Explanation]:
    """One side leaves the last response token (the end of sequence) out of its mask."""
    for label, first, second in (("B", 0, 1), ("A", 1, 0)):
        wrong = changed = 0
        for pair in evidence.samples:
            whole, short = pair[first], pair[second]
            if len(whole.tokens) != len(short.tokens) or np.array_equal(whole.loss_mask, short.loss_mask):
                continue
            changed += 1
            places = np.flatnonzero(whole.loss_mask != short.loss_mask)
            last = np.flatnonzero(whole.loss_mask)
            wrong += not (len(places) == 1 and last.size and places[0] == last[-1])
        if changed and not wrong:
            yield Explanation(
                "mask-off-at-end",
                f"{label}'s loss mask leaves out the last trained token of each response",
                0.0,
                0.0,
                {"side": label},
            )


def reward_affine(evidence: Evidence) -> Iterator[Explanation]:
    """Rewards scaled, shifted, or both."""
    found = [(a.reward, b.reward) for a, b in evidence.samples if a.reward is not None and b.reward is not None]
    if len(found) < 3:
        return
    a, b = np.asarray(found, dtype=np.float64).T
    if largest(a - a.mean()) == 0 or np.array_equal(a, b):
        return
    scale, offset = np.polyfit(a, b, 1)
    noise = 1e-5 * max(1.0, largest(b))
    residual = largest(b - (scale * a + offset))
    if residual <= noise:
        what = [f"scaled by {scale:.6g}"] if abs(scale - 1) > 1e-6 else []
        what += [f"shifted by {offset:.6g}"] if abs(offset) > 1e-6 else []
        parameters = {"scale": float(scale), "offset": float(offset)}
        yield Explanation("reward-affine", f"B's rewards are A's {' and '.join(what)}", residual, noise, parameters)


def policy_version(evidence: Evidence) -> Iterator[Explanation]:
    """One side's tokens come from older weights."""
    lags = []
    for side in (evidence.a, evidence.b):
        lag = None
        for record in side.records("trajectory", evidence.step):
            if "policy_versions" in record.fields and record.policy_version is not None:
                versions = record.array("policy_versions")
                made = versions[versions >= 0]
                if made.size:
                    lag = max(lag or 0, int(record.policy_version - made.min()))
        lags.append(lag)
    if None not in lags and lags[0] != lags[1]:
        yield Explanation(
            "policy-version",
            f"the rollout's weights lag the policy by {lags[0]} steps in A and {lags[1]} in B: weights were not synced",
            0.0,
            0.0,
            {"lag_a": lags[0], "lag_b": lags[1]},
        )


HYPOTHESES = {
    "trajectory": (policy_version, prompt_in_mask, mask_off_at_end, seed),
    "reward": (reward_affine,),
}
