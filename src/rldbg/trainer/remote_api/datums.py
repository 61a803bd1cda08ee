"""Datums: samples as training services take them. Position i of `input_tokens` predicts `target_tokens[i]`, and every
other column has one value per position: its target's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.trainer.shards import StepBatch


@dataclass(frozen=True, slots=True)
class ClientDatum:
    """One sample of length t as columns of length t - 1."""

    sample: SampleId
    input_tokens: np.ndarray  # int64
    target_tokens: np.ndarray  # int64
    logprobs: np.ndarray  # float32, of the policy the ratio is taken against; 0 on the prompt
    advantages: np.ndarray  # float32, 0 on the prompt
    loss_mask: np.ndarray  # float32

    def to_json(self, policy_version: int) -> dict[str, Any]:
        tensors = {
            name: {"data": column.tolist(), "dtype": str(column.dtype)}
            for name, column in (
                ("target_tokens", self.target_tokens),
                ("logprobs", self.logprobs),
                ("advantages", self.advantages),
                ("loss_mask", self.loss_mask),
            )
        }
        return {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": self.input_tokens.tolist()}]},
            "loss_fn_inputs": tensors,
            "metadata": {
                "group_id": self.sample.group_id,
                "run_id": self.sample.run_id,
                "policy_version": policy_version,
            },
        }


def datums_of(batch: StepBatch) -> Iterator[ClientDatum]:
    """Every sample of a batch; without old log probs they are 0, which a pass for log probs alone does not use."""
    for row, item in enumerate(batch.trajectories):
        mask = item.loss_mask[1:].astype(np.float32) * batch.trained[row]
        logprobs = np.zeros(len(item.tokens), dtype=np.float32)
        if batch.old_log_probs:
            logprobs[item.prompt_length :] = batch.old_log_probs[row]
        yield ClientDatum(
            sample=item.sample,
            input_tokens=item.tokens[:-1],
            target_tokens=item.tokens[1:],
            logprobs=logprobs[1:],
            advantages=batch.advantages[row] * mask,
            loss_mask=mask,
        )
