"""Invariants of one recording, one small pure function each. To add one, add an entry in its file and a test."""

from rldbg.analysis.checks import batches, learning, log_probs, parameters, rollouts, routing, turns, values, weights
from rldbg.analysis.checks.base import Check, NotApplicable, StepView, Violation

CHECKS: tuple[Check, ...] = (
    *rollouts.CHECKS,
    *batches.CHECKS,
    *log_probs.CHECKS,
    *learning.CHECKS,
    *parameters.CHECKS,
    *values.CHECKS,
    *turns.CHECKS,
    *weights.CHECKS,
    *routing.CHECKS,
)

__all__ = ["CHECKS", "Check", "NotApplicable", "StepView", "Violation"]
