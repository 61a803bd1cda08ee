"""Records of RLinf's actor of reasoning tasks: each rank has its part of the batch, micro-batches and gradients.

A step is one call of run_training, counted from 1. B samples; what belongs to responses is [B, R].
"""

from collections.abc import Mapping
from typing import Any

from rldbg.frameworks.policy_recording import PolicyRecording
from rldbg.frameworks.recorded import RecordedCall
from rldbg.frameworks.sequences import Sequences


class RLinfRecording(PolicyRecording):
    def run_training(self, actor: Any, *_: Any, **__: Any) -> RecordedCall:
        self.enter_step(self.step + 1)
        self.held["model"] = actor.model
        yield
        self.end_step()

    def advantages(self, actor: Any, batch: Mapping[str, Any]) -> RecordedCall:
        """The rank's part of the batch, before it is balanced among ranks."""
        result: Any = yield
        rows = Sequences.padded(result["input_ids"], result["attention_mask"]).rows(
            loss_mask=result["response_mask"][:, -actor.response_len :],
            reward=result.get("rewards"),
            logprobs=result.get("rollout_logprobs"),
            old_log_probs=result.get("recomputed_logprobs"),
            advantages=result["advantages"],
        )
        self.record_batch(rows)

    def forward(self, actor: Any, m_batch: Mapping[str, Any], *_: Any, **__: Any) -> RecordedCall:
        result: Any = yield
        self.held["batch"] = m_batch
        self.held["entropy"] = result[1] if isinstance(result, tuple) else None

    def loss(self, **given: Any) -> RecordedCall:
        result: Any = yield
        if given.get("task_type") != "reasoning" or "batch" not in self.held:
            return
        batch = self.held["batch"]
        rows = Sequences.padded(batch["input_ids"], batch["attention_mask"]).rows(
            loss_mask=given["loss_mask"],
            log_probs=given["logprobs"],
            entropy=self.held["entropy"],
            old_log_probs=given["old_logprobs"],
            advantages=given["advantages"],
            ref_log_probs=batch.get("ref_logprobs"),
        )
        self.record_loss(rows, loss=result[0], model=self.held.get("model"), loss_type=given.get("loss_type"))

    def optimizer_step(self, manager: Any, *_: Any, **__: Any) -> RecordedCall:
        self.before_update(manager.model)
        result: Any = yield
        self.after_update(manager.model, {"grad_norm": result[0], "learning_rate": result[1]})


RECORDING = RLinfRecording
