"""Records of NeMo RL: the driver has the whole batch, each rank of the policy its micro-batches and parameters.

Both count calls of `train` from 1. What belongs to tokens is [B, T] with the value of token t at t; the log probs that
the loss gets are [B, T - 1].
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rldbg.frameworks.policy_recording import PolicyRecording
from rldbg.frameworks.recorded import RecordedCall
from rldbg.frameworks.sequences import Sequences, on_host


class NemoRecording(PolicyRecording):
    # The driver.

    def advantage(self, estimator: Any, prompt_ids: Any, rewards: Any, *_: Any, **__: Any) -> RecordedCall:
        self.held["reward"] = rewards
        yield

    def policy_train(self, policy: Any, data: Mapping[str, Any], *_: Any, **__: Any) -> RecordedCall:
        self.enter_step(self.step + 1)
        rewards = self.held.pop("reward", None)
        whole = rewards is not None and len(rewards) == len(data["input_ids"])
        rows = _sequences(data).rows(
            loss_mask=_mask(data),
            reward=rewards if whole else None,
            logprobs=data.get("generation_logprobs"),
            old_log_probs=data.get("prev_logprobs"),
            advantages=data["advantages"],
        )
        self.record_batch(rows)
        yield
        self.end_step()

    # A rank of the policy.

    def worker_train(self, worker: Any, *_: Any, **__: Any) -> RecordedCall:
        self.enter_step(self.step + 1)
        self.held["model"] = worker.model
        yield
        self.end_step()

    def loss(
        self, function: Any, next_token_logprobs: Any, data: Mapping[str, Any], *_: Any, **__: Any
    ) -> RecordedCall:
        result: Any = yield
        if "advantages" not in data:
            return
        reference = data.get("reference_policy_logprobs")
        rows = _sequences(data).rows(
            loss_mask=_mask(data),
            log_probs=next_token_logprobs,
            old_log_probs=data.get("prev_logprobs"),
            advantages=data["advantages"],
            ref_log_probs=reference if getattr(function, "reference_policy_kl_penalty", 0) else None,
        )
        mode = "token_mean" if "TOKEN" in str(getattr(function, "loss_type", "")) else "sequence_mean"
        terms = {"kl_loss": result[1].get("kl_penalty")}
        self.record_loss(rows, loss=result[0], model=self.held.get("model"), terms=terms, aggregation=mode)

    def clip(self, max_grad_norm: Any, model_parts: Any, *_: Any, **__: Any) -> RecordedCall:
        """The last function before the optimizer's step."""
        self.before_update(model_parts[0])
        norm = yield
        self.update_follows(model_parts[0], {"grad_norm": norm})


def _sequences(data: Mapping[str, Any]) -> Sequences:
    tokens = on_host(data["input_ids"])
    held = np.arange(tokens.shape[1]) < on_host(data["input_lengths"])[:, None]
    return Sequences.padded(tokens, held)


def _mask(data: Mapping[str, Any]) -> np.ndarray:
    """Samples that are left out of the loss have no trained token."""
    return np.asarray(on_host(data["token_mask"]) * on_host(data["sample_mask"])[:, None])


RECORDING = NemoRecording
