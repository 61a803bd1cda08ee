"""Records of slime and miles: each rank of the actor has lists with one tensor per sample, and Megatron's gradients.

Steps are rollouts, from 0. What belongs to responses has one value per response token.
"""

from typing import Any

from rldbg.frameworks.policy_recording import PolicyRecording
from rldbg.frameworks.recorded import RecordedCall
from rldbg.frameworks.sequences import Sequences


class SlimeRecording(PolicyRecording):
    """A critic is trained by the same functions in processes of its own, which record nothing: the actor has its
    values."""

    is_critic = False

    def train(self, actor: Any, rollout_id: int, *_: Any, **__: Any) -> RecordedCall:
        self.is_critic = getattr(actor, "role", "actor") == "critic"
        self.enter_step(rollout_id)
        yield
        if not self.is_critic:
            self.end_step()

    def advantages(self, args: Any, rollout_data: Any) -> RecordedCall:
        """After it a rank's part of the batch has everything; stages before the last of a pipeline have nothing."""
        yield
        if self.is_critic or rollout_data.get("advantages") is None:
            return
        rows = Sequences.listed(rollout_data["tokens"]).rows(
            loss_mask=rollout_data["loss_masks"],
            reward=rollout_data.get("rewards"),
            logprobs=rollout_data.get("rollout_log_probs"),
            old_log_probs=rollout_data.get("log_probs"),
            advantages=rollout_data["advantages"],
            values=rollout_data.get("values") or None,
            returns=rollout_data.get("returns"),
        )
        self.record_batch(rows)

    def log_probs(self, *_: Any, **__: Any) -> RecordedCall:
        result: Any = yield
        self.held["pass"] = result[1] if isinstance(result, tuple) else result

    def loss(self, args: Any, batch: Any, *_: Any, **__: Any) -> RecordedCall:
        result: Any = yield
        found = self.held.pop("pass")
        rollout = batch.get("rollout_log_probs")
        old = rollout if getattr(args, "use_rollout_logprobs", False) else batch.get("log_probs")
        rows = Sequences.listed(batch["unconcat_tokens"]).rows(
            loss_mask=batch["loss_masks"],
            log_probs=found["log_probs"],
            entropy=found.get("entropy"),
            old_log_probs=old or found["log_probs"],
            advantages=batch["advantages"],
            ref_log_probs=batch.get("ref_log_probs"),
        )
        terms = {name: result[1].get(name) for name in ("pg_loss", "entropy_loss", "kl_loss")}
        self.record_loss(rows, loss=result[0], model=self.held.get("model"), terms=terms)

    def train_one_step(self, args: Any, rollout_id: int, step_id: int, data: Any, model: Any, optimizer: Any,
                       *_: Any, **__: Any) -> RecordedCall:  # fmt: skip
        """Gradients are zeroed before it returns, so they are taken when the optimizer steps."""
        if self.is_critic:
            yield
            return
        self.step, self.updates, self.micro = int(rollout_id), int(step_id), 0
        self.held["model"] = model[0]
        recorder, place, step = self.recorded.recorder(model[0]), self.place, optimizer.step

        def with_record(*arguments: Any, **named: Any) -> Any:
            recorder.record_gradients(model=model[0], **place)
            return step(*arguments, **named)

        optimizer.step = with_record
        result: Any = yield
        del optimizer.step
        self.after_update(model[0], {"grad_norm": result[1]})


RECORDING = SlimeRecording
