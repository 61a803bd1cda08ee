"""Records of AsyncGRPOTrainer (experimental): what its collator packs, and the loss.

The first process collates for all ranks, ahead of the step that trains on it: micro-batches are counted. Log probs of
the pass are local to the loss function, and are not recorded.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.frameworks.policy_recording import PolicyRecording
from rldbg.frameworks.recorded import FrameworkRecording, Recorded
from rldbg.frameworks.sequences import Rows

Call = Generator[None, Any, None]


class AsyncBatches(FrameworkRecording):
    """One trainer per process."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded)
        self._batches = PolicyRecording(recorded)
        self._accumulated = 1
        self._collated = 0
        self._async_place = (-1, 0)

    def async_created(self, trainer: Any, *_: Any, **__: Any) -> Call:
        yield
        self._accumulated = max(1, int(trainer.args.gradient_accumulation_steps))

    def async_batch(self, collator: Any, examples: Sequence[Any], *_: Any, **__: Any) -> Call:
        """One micro-batch of all ranks, before prompts that samples share are packed together."""
        yield
        samples = [sample for row in examples[0] for sample in row.samples]
        self._batches.enter_step(self._collated // self._accumulated)
        self._collated += 1
        rows: Rows = {
            "tokens": [np.asarray(sample["input_ids"]) for sample in samples],
            "loss_mask": [np.asarray(sample["completion_mask"]) for sample in samples],
            "logprobs": [np.asarray(sample["old_log_probs"]) for sample in samples],
            "old_log_probs": [np.asarray(sample["old_log_probs"]) for sample in samples],
            "advantages": [np.float32(sample["advantage"]) for sample in samples],
            "reward": [np.float32(sample["metrics"].get("reward", np.nan)) for sample in samples],
        }
        self._batches.record_batch(rows)

    def async_loss(self, trainer: Any, model: Any, inputs: Mapping[str, Any], *_: Any, **__: Any) -> Call:
        result = yield
        loss = result[0] if isinstance(result, tuple) else result
        step = int(trainer.state.global_step)
        micro = self._async_place[1] + 1 if self._async_place[0] == step else 0
        self._async_place = (step, micro)
        tokens = float(inputs["global_n_tokens"][0]) / trainer.accelerator.num_processes
        facts = {"aggregation": "token_mean", "denominator": max(tokens, 1.0) * self._accumulated}
        self.recorded.recorder(trainer.model).record(
            "loss", step=step, micro=micro, loss=loss.detach(), extra_info=facts
        )
