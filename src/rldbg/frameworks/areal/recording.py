"""Records of AReaL: each rank has its part of the batch, packed micro-batches, gradients and parameters.

A step is a version of the weights. What compute_advantages leaves in a batch belongs to next tokens, except the tokens
themselves and the versions.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rldbg.frameworks.policy_recording import PolicyRecording
from rldbg.frameworks.recorded import RecordedCall
from rldbg.frameworks.sequences import Sequences, joined

_NEXT = ("loss_mask", "logprobs", "old_log_probs", "advantages", "log_probs", "entropy", "ref_log_probs")


class ArealRecording(PolicyRecording):
    def advantages(self, actor: Any, data: Sequence[Mapping[str, Any]]) -> RecordedCall:
        """After it a batch has all: responses, rewards, log probs of the rollout and of the trainer, advantages."""
        batches: Any = yield
        self.enter_step(actor.engine.get_version())
        rows = joined(
            Sequences.padded(batch["input_ids"], batch["attention_mask"]).rows(
                next_token=_NEXT,
                loss_mask=batch["loss_mask"],
                reward=batch["rewards"],
                logprobs=batch["logprobs"],
                policy_versions=batch.get("versions"),
                old_log_probs=batch.get("prox_logp"),
                advantages=batch["advantages"],
            )
            for batch in batches
        )
        self.record_batch(rows, policy_version=self.step)

    def update(self, actor: Any, *_: Any, **__: Any) -> RecordedCall:
        self.enter_step(actor.engine.get_version())
        yield
        self.end_step()

    def loss(
        self, logprobs: Any, entropy: Any, input_data: Mapping[str, Any], *_: Any, **settings: Any
    ) -> RecordedCall:
        """One micro-batch, packed."""
        loss = yield
        old = input_data.get("prox_logp")
        rows = Sequences.packed(input_data["input_ids"], input_data["cu_seqlens"]).rows(
            next_token=_NEXT,
            loss_mask=input_data["loss_mask"],
            log_probs=logprobs,
            entropy=entropy,
            old_log_probs=input_data["logprobs"] if old is None else old,
            advantages=input_data["advantages"],
        )
        clip: dict[str, Any] = {
            name: settings[name] for name in ("eps_clip", "eps_clip_higher", "c_clip") if name in settings
        }
        self.record_loss(rows, loss=loss, model=self.held.get("model"), aggregation="token_mean", **clip)

    def train_batch(self, engine: Any, *_: Any, **__: Any) -> RecordedCall:
        self.held["model"] = engine.model
        yield

    def optimizer_step(self, engine: Any) -> RecordedCall:
        self.before_update(engine.model)
        metrics = yield
        self.after_update(engine.model, metrics)


RECORDING = ArealRecording
