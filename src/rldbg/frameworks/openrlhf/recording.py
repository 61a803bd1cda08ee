"""Records of OpenRLHF: the driver has the experiences with rewards and advantages, each rank of the actor its
micro-batches and parameters. Steps count from 0; ranks count calls of ppo_train, because they do not know the step.

Experiences hold responses on the axis of next tokens: [B, T - 1]. Gradients lie in DeepSpeed's own buffers: where a
parameter has none, only their norm is recorded.
"""

from typing import Any

from rldbg.frameworks.policy_recording import PolicyRecording
from rldbg.frameworks.recorded import RecordedCall
from rldbg.frameworks.sequences import Sequences, joined


class OpenRLHFRecording(PolicyRecording):
    _updated = 0

    # The driver.

    def train_step(self, trainer: Any, rollout_samples: Any, global_step: int, *_: Any, **__: Any) -> RecordedCall:
        self.enter_step(global_step)
        yield
        self.end_step()

    def advantages(self, maker: Any, experiences: Any) -> RecordedCall:
        result: Any = yield
        parts = [
            Sequences.padded(each.sequences, each.attention_mask).rows(
                loss_mask=each.action_mask,
                reward=each.rewards,
                logprobs=each.rollout_log_probs,
                old_log_probs=each.action_log_probs,
                advantages=each.advantages,
            )
            for each in result
        ]
        self.record_batch(joined(parts))

    # A rank of the actor.

    def ppo_train(self, trainer: Any, *_: Any, **__: Any) -> RecordedCall:
        self.enter_step(self._updated)
        self._updated += 1
        yield
        self.end_step()

    def training_step(self, trainer: Any, experience: Any, *_: Any, **__: Any) -> RecordedCall:
        self.held |= {"experience": experience, "model": getattr(trainer.actor, "model", trainer.actor)}
        yield
        self.held.clear()

    def policy_loss(
        self, module: Any, log_probs: Any, old_log_probs: Any, advantages: Any, *_: Any, **__: Any
    ) -> RecordedCall:
        """One micro-batch. KL and entropy terms are added to this loss later."""
        result: Any = yield
        experience = self.held.get("experience")
        if experience is None:
            return
        rows = Sequences.padded(experience.sequences, experience.attention_mask).rows(
            loss_mask=experience.action_mask,
            log_probs=log_probs,
            old_log_probs=old_log_probs,
            advantages=advantages,
            ref_log_probs=experience.base_action_log_probs,
        )
        mode = "token_mean" if module.token_level_loss else "sequence_mean"
        terms = {"pg_loss": result[0]}
        self.record_loss(rows, loss=result[0], model=self.held["model"], terms=terms, aggregation=mode)

    def optimizer_step(self, strategy: Any, optimizer: Any, model: Any, *_: Any, **__: Any) -> RecordedCall:
        """Called after each micro-batch; DeepSpeed steps after the last of a mini-batch."""
        engine = getattr(model, "model", model)
        steps = getattr(engine, "is_gradient_accumulation_boundary", lambda: True)()
        if steps:
            self.before_update(engine)
        yield
        if steps:
            self.after_update(engine, {"grad_norm": strategy.get_grad_norm(model)})


RECORDING = OpenRLHFRecording
