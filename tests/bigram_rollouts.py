"""Recordings of rollouts whose model is a table of logits by the token before: every log prob is known exactly.

Samples of a group share their prompt, so tokens meet the same contexts. Tests change what the rollout, or the trainer,
says about the tokens.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import rldbg

WORDS, GROUPS, PER_GROUP, LENGTH = 12, 6, 8, 6
TEMPERATURE = 0.8


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@dataclass
class Rollouts:
    """One step: tokens [samples, 1 + LENGTH], whose first is the prompt, and both log probs [samples, LENGTH]."""

    tokens: np.ndarray
    logits: np.ndarray
    rollout: np.ndarray
    trainer: np.ndarray
    versions: np.ndarray
    extra: list[dict[str, Any]] = field(default_factory=list)
    reference: np.ndarray | None = None
    inputs: dict[str, np.ndarray] | None = None
    trains: str = ""

    def but(self, **changes):
        return replace(self, **changes)

    def log_probs(self, logits=None, temperature=TEMPERATURE, keep=None):
        """Of the tokens under logits [WORDS, WORDS], renormalised over the `keep` likeliest of each row."""
        scaled = (self.logits if logits is None else logits) / temperature
        if keep is not None:
            scaled = np.where(scaled >= np.sort(scaled, -1)[:, -keep][:, None], scaled, -np.inf)
        return log_softmax(scaled)[self.tokens[:, :-1], self.tokens[:, 1:]]


def rollouts(seed=0, keep=None):
    numbers = np.random.default_rng(seed)
    logits = numbers.normal(0, 1.5, (WORDS, WORDS))
    shown = logits if keep is None else np.where(logits >= np.sort(logits, -1)[:, -keep][:, None], logits, -np.inf)
    chances = np.exp(log_softmax(shown / TEMPERATURE))
    tokens = np.zeros((GROUPS * PER_GROUP, 1 + LENGTH), np.int64)
    tokens[:, 0] = np.repeat(np.arange(GROUPS), PER_GROUP)
    for place in range(LENGTH):
        tokens[:, place + 1] = [numbers.choice(WORDS, p=chances[before]) for before in tokens[:, place]]
    made = Rollouts(tokens, logits, tokens[:, 1:], tokens[:, 1:], np.zeros((len(tokens), LENGTH), np.int64))
    extra = [{"temperature": TEMPERATURE} for _ in tokens]
    return made.but(rollout=made.log_probs(), trainer=made.log_probs(), extra=extra)


def record(folder, *steps):
    """Writes the steps; the recording, opened."""
    with rldbg.Recorder(folder) as recorder:
        for step, data in enumerate(steps):
            samples = [(f"g{row // PER_GROUP}", row % PER_GROUP) for row in range(len(data.tokens))]
            before = np.zeros((len(data.tokens), 1))
            recorder.record(
                "trajectory",
                step=step,
                samples=samples,
                policy_version=step,
                tokens=list(data.tokens),
                loss_mask=list(np.concatenate([before, np.ones_like(data.rollout)], 1).astype(np.int64)),
                reward=np.zeros(len(data.tokens), np.float32),
                logprobs=list(np.concatenate([before, data.rollout], 1).astype(np.float32)),
                policy_versions=list(np.concatenate([before - 1, data.versions], 1).astype(np.int64)),
                extra_fields=data.extra,
            )
            recorder.record("old_log_probs", step=step, samples=samples, old_log_probs=data.trainer.astype(np.float32))
            if data.reference is not None:
                recorder.record(
                    "forward_data",
                    step=step,
                    samples=samples,
                    log_probs=data.trainer.astype(np.float32),
                    ref_log_probs=data.reference.astype(np.float32),
                    response_mask=np.ones(data.trainer.shape, np.int64),
                )
            if data.trains:
                recorder.record("gradient", step=step, param_name=data.trains, gradient=np.zeros(2, np.float32))
            if data.inputs is not None:
                recorder.record("batch_inputs", step=step, samples=samples, **data.inputs)
    return rldbg.open(folder)
