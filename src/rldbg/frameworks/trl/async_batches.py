"""Records of AsyncGRPOTrainer (experimental): what its collator packs, and the loss with what it is made from.

The first process collates for all ranks, ahead of the step that trains on it: micro-batches are counted. Each rank has
its samples packed as a tree, in which they share what they begin with; samples are named by their tokens, up to the
last one that is trained on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np

from rldbg.frameworks.policy_recording import PolicyRecording
from rldbg.frameworks.recorded import FrameworkRecording, Recorded, RecordedCall
from rldbg.frameworks.sequences import FieldLists, on_host
from rldbg.frameworks.trl.places import frame_of

_VERSION = "rldbg_version"


class AsyncBatches(FrameworkRecording):
    """One trainer per process."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded)
        self._batches, self._async_passes = PolicyRecording(recorded), PolicyRecording(recorded)
        self._async_trainer: Any = None
        self._accumulated = 1
        self._collated = self._resumed_at = 0
        self._async_frame: FrameType | None = None

    def async_created(self, trainer: Any, *_: Any, **__: Any) -> RecordedCall:
        yield
        self._async_trainer = trainer
        self._accumulated = max(1, int(trainer.args.gradient_accumulation_steps))

    def async_samples(self, dataset: Any) -> RecordedCall:
        """What the trainer takes from the queue lacks the version of the weights that made it."""
        samples = yield
        return _with_versions(samples, dataset)

    def async_batch(self, collator: Any, examples: Sequence[Any], *_: Any, **__: Any) -> RecordedCall:
        """One micro-batch of all ranks, before prompts that samples share are packed together."""
        yield
        samples = [_until_trained(sample) for row in examples[0] for sample in row.samples]
        updates, micro = divmod(self._collated, self._accumulated)
        if not self._collated:
            self._resumed_at = int(self._async_trainer.state.global_step)
        self._batches.enter_step(self._resumed_at + updates)
        self._collated += 1
        rows: FieldLists = {
            "tokens": [sample["input_ids"] for sample in samples],
            "loss_mask": [sample["completion_mask"] for sample in samples],
            "logprobs": [sample["old_log_probs"] for sample in samples],
            "old_log_probs": [sample["old_log_probs"] for sample in samples],
            "advantages": [np.float32(sample["advantage"]) for sample in samples],
            "reward": [np.float32(sample["metrics"].get("reward", np.nan)) for sample in samples],
        }
        current = updates // max(1, int(self._async_trainer.args.weight_sync_steps))
        if all(_VERSION in sample for sample in samples):
            rows["policy_versions"] = [np.where(sample["completion_mask"], sample[_VERSION], -1) for sample in samples]
        self._batches.record_batch(rows, micro=micro, policy_version=current)

    def async_pass(self, *_: Any, **__: Any) -> RecordedCall:
        """A function that the loss calls behind its last line of mathematics."""
        self._async_frame = frame_of("compute_loss")
        yield

    def async_loss(self, trainer: Any, model: Any, inputs: Mapping[str, Any], *_: Any, **__: Any) -> RecordedCall:
        self._async_frame = None
        result = yield
        # The variables of a returned function stay available in its frame while that is referenced.
        computed: dict[str, Any] = {} if self._async_frame is None else dict(self._async_frame.f_locals)
        self._async_frame = None
        loss = result[0] if isinstance(result, tuple) else result
        passes, step = self._async_passes, int(trainer.state.global_step)
        if passes.step != step:
            passes.enter_step(step)
        tokens = float(inputs["global_n_tokens"][0]) / trainer.accelerator.num_processes
        facts = {"aggregation": "token_mean", "denominator": max(tokens, 1.0) * self._accumulated}
        if _OF_PASS.keys() <= computed.keys():
            passes.record_loss(_rows_of_tree(computed), loss=loss.detach(), model=trainer.model, **facts, form="ratio")
            return
        self.recorded.recorder(trainer.model).record(
            "loss", step=step, micro=passes.micro, loss=loss.detach(), extra_info=facts
        )
        passes.micro += 1


# The variables of `compute_loss` that are records, one value per trained token, and those that say which token it is.
_OF_TOKENS = {
    "log_probs": "log_probs",
    "entropy": "entropy",
    "old_log_probs": "old_log_probs",
    "advantages": "advantages",
    "coef_1": "prob_ratio",
    "per_token_loss": "elementwise_loss",
}
_OF_PASS = _OF_TOKENS | dict.fromkeys(
    ("token_index", "segment_id", "tree_kwargs", "input_ids", "position_ids", "shift_labels"), ""
)


def _with_versions(samples: Iterable[Any], dataset: Any) -> Iterator[Any]:
    """Each sample with the number of updates that its weights had; TRL counts the first weights that it sends as 1."""
    for sample in samples:
        lag = dataset.metrics.get("sample/staleness_max")
        yield sample | {_VERSION: int(dataset.model_version_fn() - lag[-1]) - 1} if lag else sample


def _until_trained(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample without what lies behind its last trained token, which no rank can tell from its tree."""
    trained = np.flatnonzero(sample["completion_mask"])
    end = int(trained[-1]) + 1 if len(trained) else len(sample["input_ids"])
    columns = ("input_ids", "completion_mask", "old_log_probs")
    return dict(sample) | {name: np.asarray(sample[name])[:end] for name in columns}


def _rows_of_tree(computed: Mapping[str, Any]) -> FieldLists:
    """The samples of a packed tree: a trained token is the label of the position before it, whose path is the rest."""
    tree = {name: on_host(value) for name, value in computed["tree_kwargs"].items() if hasattr(value, "detach")}
    ids, depths, labels, index, sample_of = (
        on_host(computed[name]).reshape(-1)
        for name in ("input_ids", "position_ids", "shift_labels", "token_index", "segment_id")
    )
    values = {record: on_host(computed[name]) for name, record in _OF_TOKENS.items()}
    rows: FieldLists = {name: [] for name in ("tokens", "loss_mask", *values)}
    starts, ends = tree["tree_cu_seqlens_q"], tree["tree_cu_seqlens_k"]
    for sample in np.unique(sample_of):
        chosen = np.flatnonzero(sample_of == sample)
        last = index[chosen[-1]]
        segment = int(np.searchsorted(starts, last, side="right")) - 1
        path = tree["tree_kv_index"][ends[segment] : ends[segment + 1]][: depths[last] + 1]
        places = depths[index[chosen]] + 1
        rows["tokens"].append(np.append(ids[path], labels[last]))
        for name, column in (("loss_mask", np.ones(len(index), np.int64)), *values.items()):
            whole = np.zeros(len(path) + 1, column.dtype)
            whole[places] = column[chosen]
            rows[name].append(whole)
    return rows
