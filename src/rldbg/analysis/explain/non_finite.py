"""Numbers that are not finite on one side only: nothing else can be fitted to them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, Hypothesis, largest, round_to

_FLOAT16_LARGEST = 65504.0


def of_tokens(quantity: str) -> Hypothesis:
    """NaN or infinite at tokens where the other side has numbers."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        found = evidence.tokens(quantity)
        if found is not None:
            yield from _one_side(quantity, *found)

    return hypothesis


def of_rewards(evidence: Evidence) -> Iterator[Explanation]:
    """Rewards that are NaN or infinite."""
    known = [(a.reward, b.reward) for a, b in evidence.samples if a.reward is not None and b.reward is not None]
    if known:
        a, b = np.asarray(known, dtype=np.float64).T
        yield from _one_side("rewards", a, b)


def of_tensors(kind: str) -> Hypothesis:
    """Gradients or parameters that are NaN or infinite."""

    def hypothesis(evidence: Evidence) -> Iterator[Explanation]:
        a, b = (side.tensors(kind, evidence.update) for _, side in evidence.sides)
        keys = [key for key in a if key in b and a[key].shape == b[key].shape]
        if keys:
            one, other = (np.concatenate([side[key].ravel() for key in keys]) for side in (a, b))
            yield from _one_side({"gradient": "gradients", "param": "parameters"}[kind], one, other)

    return hypothesis


def of_losses(evidence: Evidence) -> Iterator[Explanation]:
    """Losses that are NaN or infinite."""
    yield from _one_side("losses", *evidence.shared_losses())


def _one_side(what: str, a: np.ndarray, b: np.ndarray) -> Iterator[Explanation]:
    for label, right, wrong in (("B", a, b), ("A", b, a)):
        odd = ~np.isfinite(wrong)
        if not odd.any() or not np.isfinite(right[odd]).all():
            continue
        kinds = [name for name, rule in (("NaN", np.isnan), ("infinite", np.isinf)) if rule(wrong).any()]
        text = f"{label}'s {what} are {' or '.join(kinds)} at {int(odd.sum())} places where the other side has numbers"
        rest = wrong[~odd]
        if rest.size and rest.any() and not np.array_equal(right[~odd], round_to(right[~odd], 11)):
            if np.array_equal(rest, round_to(rest, 11)):
                text += f"; the others have the 11 bits of float16, whose largest number is {_FLOAT16_LARGEST:.0f}"
            elif largest(right[~odd] - rest) <= 1e-2 * max(largest(right[~odd]), 1.0):
                text += ": an overflow or a division by 0"
        yield Explanation("non-finite", text, parameters={"side": label, "places": int(odd.sum())})


HYPOTHESES: dict[str, tuple[Hypothesis, ...]] = {
    "trajectory": (of_tokens("rollout_log_probs"),),
    "reward": (of_rewards,),
    "advantage": (of_tokens("advantages"),),
    "old_log_probs": (of_tokens("old_log_probs"),),
    "forward": (of_tokens("log_probs"), of_tokens("ref_log_probs"), of_tokens("entropy")),
    "ratio": (of_tokens("prob_ratio"),),
    "loss": (of_tokens("elementwise_loss"), of_losses),
    "gradient": (of_tensors("gradient"),),
    "parameter": (of_tensors("param"),),
}
