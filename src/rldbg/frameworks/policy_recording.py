"""What every trainer of policies has, as records: a batch with rewards and advantages, the loss of a micro-batch, and
an optimizer step. A framework's own recording says where to find them; the rows come from rldbg.frameworks.sequences.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.frameworks.recorded import FrameworkRecording, Recorded
from rldbg.frameworks.sequences import FieldLists, Named, Seen, named
from rldbg.recording import Ragged

_FIELDS = {"tokens": np.int64, "loss_mask": np.int64, "logprobs": np.float32, "policy_versions": np.int64}
_OF_PASS = ("log_probs", "entropy", "ref_log_probs")
_OF_LOSS = ("log_probs", "old_log_probs", "advantages", "prob_ratio", "elementwise_loss")


class PolicyRecording(FrameworkRecording):
    """Counts where training is: a step has optimizer steps (mini-batches), each of which has micro-batches."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded)
        self.step = 0
        self.updates = 0
        self.micro = 0
        self.held: dict[str, Any] = {}
        """What one hooked function leaves for the next."""
        self._known: dict[bytes, list[Named]] = {}
        self._passed: Counter[bytes] = Counter()
        # Equal samples are counted over the batches of a step, and over the micro-batches of an update.
        self._in_batches: Seen = {}
        self._in_update: Seen = {}
        self._following: tuple[Any, Mapping[str, Any]] | None = None

    def enter_step(self, step: int) -> None:
        if int(step) != self.step:
            self._in_batches = {}
        self.step, self.updates, self.micro = int(step), 0, 0
        self._in_update = {}

    @property
    def place(self) -> dict[str, Any]:
        return {"step": self.step, "mini_batch": self.updates}

    def record_batch(self, rows: FieldLists, *, policy_version: int | None = None, micro: int = 0) -> None:
        """trajectory, and with advantages prepared_trajectories, with old log probs old_log_probs. `micro` counts the
        batches of one step."""
        known = named(rows, self.step, self._in_batches)
        self._known, self._passed = {}, Counter()
        for tokens, each in zip(rows["tokens"], known, strict=True):
            self._known.setdefault(tokens.tobytes(), []).append(each)
        samples, hashes = [each.sample for each in known], [each.prompt_hash for each in known]
        about = [{"group_id": sample.group_id, "run_id": sample.run_id} for sample in samples]
        fields: dict[str, Any] = {
            name: Ragged.from_rows(rows[name], dtype) for name, dtype in _FIELDS.items() if name in rows
        }
        rewards = rows.get("reward") or [np.nan] * len(samples)
        fields |= {"reward": np.asarray([np.sum(row) for row in rewards], np.float32), "extra_fields": about}
        where: dict[str, Any] = {"step": self.step, "micro": micro, "samples": samples}
        where["policy_version"] = policy_version
        recorder = self.recorded.recorder()
        recorder.record("trajectory", **where, **fields)
        if "advantages" in rows:
            # Without a critic, returns are the advantages again.
            learned = ("advantages", "values", "returns") if "values" in rows else ("advantages",)
            estimates: dict[str, Any] = {name: Ragged.from_rows(_whole(rows, name), np.float32) for name in learned}
            recorder.record("prepared_trajectories", **where, **fields, **estimates)
        if "old_log_probs" in rows:
            old = Ragged.from_rows(_responses(rows, "old_log_probs", known), np.float32)
            recorder.record("old_log_probs", **where, prompt_hashes=hashes, old_log_probs=old)

    def record_loss(
        self, rows: FieldLists, *, loss: Any, model: Any = None, terms: Mapping[str, Any] | None = None, **facts: Any
    ) -> None:
        """One micro-batch: forward_data, is_loss_debug and loss. `loss_mask` says which tokens the loss has."""
        self.settle()
        # As the batch names them, if this process has it: the mask of the loss may be another, by mistake.
        named_here = zip(rows["tokens"], named(rows, self.step, self._in_update), strict=True)
        known = [self._as_in_batch(tokens.tobytes(), each) for tokens, each in named_here]
        samples = [each.sample for each in known]
        where: dict[str, Any] = self.place | {"micro": self.micro, "samples": samples}
        where["prompt_hashes"] = [each.prompt_hash for each in known]
        self.micro += 1
        mask = Ragged.from_rows([row != 0 for row in _responses(rows, "loss_mask", known)], np.int64)
        columns: dict[str, Any] = {
            name: Ragged.from_rows(_responses(rows, name, known), np.float32)
            for name in dict.fromkeys((*_OF_PASS, *_OF_LOSS))
            if name in rows
        }
        recorder = self.recorded.recorder(model)
        passed, used = ({name: columns[name] for name in names if name in columns} for names in (_OF_PASS, _OF_LOSS))
        recorder.record(
            "forward_data", **where, **passed, response_mask=mask, input_ids=Ragged.from_rows(rows["tokens"], np.int64)
        )
        value = number(loss)
        if "advantages" in used:
            recorder.record("is_loss_debug", **where, **used, effective_valid=mask, loss=value)
        parts: dict[str, Any] = {
            name: found for name, each in (terms or {}).items() if (found := number(each)) is not None
        }
        recorder.record("loss", **where, loss=value, **parts, extra_info=facts)

    def _as_in_batch(self, tokens: bytes, otherwise: Named) -> Named:
        """Equal samples in turn: every pass over the batch has each of them once."""
        equal = self._known.get(tokens, [otherwise])
        self._passed[tokens] += 1
        return equal[(self._passed[tokens] - 1) % len(equal)]

    def before_update(self, model: Any) -> None:
        """Gradients as the backward passes left them."""
        self.recorded.recorder(model).record_gradients(model=model, **self.place)

    def after_update(self, model: Any, metrics: Mapping[str, Any]) -> None:
        """Parameters after an optimizer step, and what the framework says of it."""
        recorder = self.recorded.recorder(model)
        recorder.record_parameters(model=model, **self.place)
        recorder.record("update_metrics", **self.place, metrics=numbers_of(metrics))
        self.updates, self.micro = self.updates + 1, 0
        self._in_update = {}

    def update_follows(self, model: Any, metrics: Mapping[str, Any]) -> None:
        """The optimizer steps soon, where nothing is hooked: recorded with what comes next."""
        self._following = model, metrics

    def settle(self) -> None:
        """An optimizer step that was announced has been made."""
        if self._following is not None:
            following, self._following = self._following, None
            self.after_update(*following)

    def end_step(self) -> None:
        self.settle()
        self.recorded.recorder().end_step(self.step)


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: found for name, value in metrics.items() if (found := number(value)) is not None}


def number(value: Any) -> float | None:
    """A metric as a number: some are tensors, some lists of one."""
    try:
        return float(value[0] if isinstance(value, list | tuple) and len(value) == 1 else value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _whole(rows: FieldLists, name: str) -> list[np.ndarray]:
    """A column with one value per token; a number of a sample is that of each of its tokens."""
    return [np.broadcast_to(value, tokens.shape) for value, tokens in zip(rows[name], rows["tokens"], strict=True)]


def _responses(rows: FieldLists, name: str, known: Sequence[Named]) -> list[np.ndarray]:
    """What belongs to the responses."""
    return [row[each.start :] for row, each in zip(_whole(rows, name), known, strict=True)]
