"""Records of SkyRL: the trainer has the whole batch, each rank of the policy its micro-batches, gradients, parameters.

Steps count from 1 and reach the ranks in the batch's metadata. B samples; what belongs to responses is [B, R].
"""

from typing import Any

from rldbg.frameworks.policy_recording import PolicyRecording
from rldbg.frameworks.recorded import RecordedCall
from rldbg.frameworks.sequences import Sequences, chosen


class SkyRLRecording(PolicyRecording):
    # The trainer.

    def train(self, trainer: Any, data: Any) -> RecordedCall:
        """Before the update the batch has everything."""
        self.enter_step(trainer.global_step)
        rows = Sequences.padded(data["sequences"], data["attention_mask"]).rows(
            loss_mask=data["loss_mask"],
            reward=data.get("rewards"),
            logprobs=data.get("rollout_logprobs"),
            old_log_probs=data.get("action_log_probs"),
            advantages=data.get("advantages"),
        )
        padding = int((data.metadata or {}).get("pad_size", 0))
        self.record_batch(chosen(rows, range(len(rows["tokens"]) - padding)), policy_version=self.step - 1)
        yield
        self.end_step()

    # A rank of the policy.

    def forward_backward(self, worker: Any, data: Any, *_: Any, **__: Any) -> RecordedCall:
        step = int((data.metadata or {}).get("global_step", self.step))
        if step != self.step:
            self.enter_step(step)
        yield

    def forward(self, model: Any, *_: Any, **__: Any) -> RecordedCall:
        self.held["pass"] = yield

    def micro_batch(self, worker: Any, experience: Any, microbatch_weight: float, *_: Any, **__: Any) -> RecordedCall:
        self.held.clear()
        status: Any = yield
        log_probs, output = self.held["pass"]
        responses = int(experience.num_actions)
        rows = Sequences.padded(experience.sequences, experience.attention_mask).rows(
            loss_mask=experience.loss_mask,
            log_probs=log_probs,
            entropy=output["entropy"][:, -responses - 1 : -1],
            old_log_probs=experience.action_log_probs,
            advantages=experience.advantages,
            ref_log_probs=experience.base_action_log_probs,
        )
        terms = {"pg_loss": status.get("policy_loss"), "kl_loss": status.get("policy_kl")}
        weight = float(microbatch_weight)
        self.record_loss(rows, loss=status["final_loss"], model=worker.model, terms=terms, micro_batch_weight=weight)

    def optimizer_step(self, worker: Any) -> RecordedCall:
        self.before_update(worker.model)
        norm = yield
        self.after_update(worker.model, {"grad_norm": norm})


RECORDING = SkyRLRecording
