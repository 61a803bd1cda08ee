"""Records of NexRL's self-hosted ranks: their part of the batch, micro-batches, gradients, parameters.

The trainer's own dumps have the rewards; steps are its global steps. B samples; what belongs to responses is [B, R].
"""

from typing import Any

from rldbg.frameworks.policy_recording import PolicyRecording
from rldbg.frameworks.recorded import RecordedCall
from rldbg.frameworks.sequences import FieldLists, Sequences


class NexRLRecording(PolicyRecording):
    def update_policy(self, actor: Any, data: Any) -> RecordedCall:
        self.enter_step(int(data.meta_info.get("global_step", self.step + 1)))
        self.held["model"] = actor.actor_module
        batch = data.batch
        self.record_batch(_rows(batch, advantages=batch["advantages"], old_log_probs=_column(batch, "old_log_probs")))
        yield
        self.held.clear()
        self.end_step()

    def forward(self, actor: Any, micro_batch: Any, *_: Any, **__: Any) -> RecordedCall:
        result: Any = yield
        self.held["entropy"] = result[0]

    def loss(self, log_prob: Any, data: Any, *_: Any, **__: Any) -> RecordedCall:
        result: Any = yield
        rows = _rows(
            data,
            log_probs=log_prob,
            entropy=self.held.get("entropy"),
            old_log_probs=_column(data, "old_log_probs"),
            advantages=data["advantages"],
            ref_log_probs=_column(data, "ref_log_prob"),
        )
        self.record_loss(rows, loss=result[0], model=self.held.get("model"), terms={"pg_loss": result[0]})

    def optimizer_step(self, actor: Any) -> RecordedCall:
        self.before_update(actor.actor_module)
        norm = yield
        self.after_update(actor.actor_module, {"grad_norm": norm})


def _rows(batch: Any, **columns: Any) -> FieldLists:
    masks = _column(batch, "scoring_attention_mask")
    mask = (batch["attention_mask"] if masks is None else masks)[:, -batch["responses"].shape[1] :]
    return Sequences.padded(batch["input_ids"], batch["attention_mask"]).rows(loss_mask=mask, **columns)


def _column(batch: Any, name: str) -> Any:
    return batch[name] if name in batch.keys() else None  # noqa: SIM118 - a TensorDict is no mapping


RECORDING = NexRLRecording
