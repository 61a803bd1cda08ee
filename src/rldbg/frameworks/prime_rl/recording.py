"""Records of prime-rl's trainer: each rank gets packed micro-batches with advantages and trains on them.

Steps count batches from 1, as the trainer's. Rewards stay in the orchestrator, whose files `rldbg.open` reads.
"""

from typing import Any

import numpy as np

from rldbg.frameworks.policy_recording import PolicyRecording
from rldbg.frameworks.recorded import RecordedCall
from rldbg.frameworks.sequences import Sequences, joined


class PrimeRecording(PolicyRecording):
    def batch(self, loader: Any, *_: Any, **__: Any) -> RecordedCall:
        """All micro-batches of a step."""
        self.end_step()
        batches: Any = yield
        self.enter_step(self.step + 1)
        self.held = {"tokens": [_sequences(batch) for batch in batches]}
        rows = joined(
            _sequences(batch).rows(
                loss_mask=batch["loss_mask"], logprobs=batch["inference_logprobs"], advantages=batch["advantages"]
            )
            for batch in batches
        )
        self.record_batch(rows, policy_version=self.step - 1)

    def loss(self, *_: Any, **given: Any) -> RecordedCall:
        result: Any = yield
        rows = self.held["tokens"][self.micro].rows(
            loss_mask=given["loss_mask"],
            log_probs=given["trainer_logprobs"],
            old_log_probs=given["inference_logprobs"],
            advantages=given["advantages"],
            ref_log_probs=given.get("ref_logprobs"),
        )
        scale = given.get("rl_scale") or given.get("loss_scale")
        facts: dict[str, Any] = {} if scale is None else {"aggregation": "token_mean", "denominator": float(scale)}
        self.record_loss(rows, loss=result[0], model=self.held.get("model"), **facts)

    def forward(self, model: Any, *_: Any, **__: Any) -> RecordedCall:
        self.held["model"] = model
        yield

    def clip(self, manager: Any, model: Any, *_: Any, **__: Any) -> RecordedCall:
        """The last function before the optimizer's step."""
        self.before_update(model)
        norm = yield
        self.update_follows(model, {"grad_norm": norm})


def _sequences(batch: Any) -> Sequences:
    lengths = np.cumsum([0, *batch["sequence_lengths"]])
    return Sequences.packed(batch["input_ids"], lengths)


RECORDING = PrimeRecording
