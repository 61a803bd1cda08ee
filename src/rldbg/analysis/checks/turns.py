"""Checks on conversations: what is trained on is what the engine saw, and the answers are trained on."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rldbg.analysis.checks.base import Check, NotApplicable, StepView, Violation
from rldbg.analysis.tokens import SampleTokens
from rldbg.analysis.turn_requests import TurnRequest, rewritten_turn, turn_requests
from rldbg.core import Severity


def _append_only(view: StepView) -> Iterable[Violation]:
    requests = turn_requests(view.side, view.step)
    known = {sample: turns for sample, turns in requests.items() if sample in view.samples and len(turns) > 1}
    if not known:
        raise NotApplicable("no samples of several turns with extra_fields.turns")
    for sample, turns in known.items():
        number = rewritten_turn(view.samples[sample], turns)
        if number is not None:
            asked = turns[number - 1].prompt_tokens
            text = f"in turn {number} the engine was given a prompt of {asked} tokens"
            text += ", which the trained sequence does not begin with"
            yield Violation(f"step {view.step} sample {sample}", (text,))


def _answers_trained(view: StepView) -> Iterable[Violation]:
    requests = turn_requests(view.side, view.step)
    seen = False
    for sample in view.samples.values():
        drawn = _drawn(sample, requests.get(sample.sample, []))
        if drawn is None:
            continue
        seen = True
        trained = sample.loss_mask != 0
        missed = drawn & ~trained
        # A sample without any trained token was left out on purpose.
        if trained.any() and missed.any():
            first, count = int(np.flatnonzero(missed)[0]), int(missed.sum())
            sampled = f"{count} of {int(drawn.sum())} tokens that the policy sampled"
            text = f"{sampled} are not trained on, from token {first} on"
            yield Violation(f"step {view.step} sample {sample.sample}", (text,))
    if not seen:
        raise NotApplicable("no policy versions and no extra_fields.turns: which tokens were sampled is not recorded")


def _drawn(sample: SampleTokens, turns: list[TurnRequest]) -> np.ndarray | None:
    """Which tokens the policy sampled; None where nothing says it."""
    versions = sample.quantities.get("policy_versions")
    if versions is not None and len(versions.values) == len(sample.tokens):
        known: np.ndarray = versions.values >= 0
        return known
    if not turns:
        return None
    drawn = np.zeros(len(sample.tokens), dtype=bool)
    for turn in turns:
        drawn[turn.prompt_tokens : turn.prompt_tokens + turn.tokens] = True
    return drawn


CHECKS = (
    Check(
        "history-is-append-only",
        "trained tokens begin with the engine's prompt in each turn",
        "the history was rendered again: a template dropped or rewrote earlier turns, or text was tokenised again",
        (
            "train on the tokens of the rollout itself",
            "rldbg check-template MODEL tells which template property breaks",
        ),
        _append_only,
    ),
    Check(
        "masks-cover-assistant-turns",
        "all tokens that the policy sampled in a trained sample are trained on",
        "the loss mask misses a part of the answers: a turn, or the token that ends it",
        ("build the mask from the spans of the rollout, not from rendered text",),
        _answers_trained,
        Severity.WARNING,
    ),
)
