"""Samples of slime and miles as records. Response fields cover the last response_length tokens of a sample."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.recording import EncodedArray, Ragged, Record
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.layouts.base import IDS_FROM, VALIDATION, Entry
from rldbg.recording.layouts.columns import after_prompt, ids_in_order, numbers, prompt_hashes, ragged
from rldbg.recording.layouts.pickled import plain

_Sample = Mapping[str, Any]
_ROLLOUT_USED = frozenset({"tokens", "loss_mask", "rollout_log_probs", "group_index", "index", "response_length"})
_TRAIN_USED = frozenset(
    {
        "tokens",
        "loss_masks",
        "rollout_log_probs",
        "advantages",
        "log_probs",
        "rewards",
        "total_lengths",
        "response_lengths",
    }
)
_BATCH_FIELDS = frozenset({"samples", "rollout_id", "rank"})


def rollout_record(data: Mapping[str, Any], messages: Mapping[int, Any], entry: Entry) -> Record:
    """What was generated: kind trajectory, or validation."""
    samples = _samples(data.get("samples"))
    tokens = ragged([sample.get("tokens") for sample in samples])
    lengths = [int(sample.get("response_length") or 0) for sample in samples]
    masks = [_mask(sample.get("loss_mask"), length) for sample, length in zip(samples, lengths, strict=True)]
    fields: dict[str, Any] = {
        "tokens": tokens,
        "loss_mask": after_prompt(ragged(masks), tokens.lengths),
        "reward": numbers(sample.get("reward") for sample in samples),
    }
    if any(sample.get("rollout_log_probs") is not None for sample in samples):
        logprobs = [_or_nan(sample.get("rollout_log_probs"), n) for sample, n in zip(samples, lengths, strict=True)]
        fields["logprobs"] = after_prompt(ragged(logprobs), tokens.lengths)
    versions = [_single_version(sample.get("weight_versions")) for sample in samples]
    if samples and all(version is not None for version in versions):
        made = [np.full(length, version) for version, length in zip(versions, lengths, strict=True)]
        fields["policy_versions"] = after_prompt(ragged(made), tokens.lengths, fill=-1)
    if entry.kind == VALIDATION:
        fields["is_val"] = np.ones(len(samples), bool)
    fields["extra_fields"] = [_rest(sample, _ROLLOUT_USED) | _conversation(sample, messages) for sample in samples]
    hashes = prompt_hashes(tokens, _response_mask(lengths, tokens))
    extra = {key: plain(value) for key, value in data.items() if key not in _BATCH_FIELDS}
    groups = [sample.get("group_index") for sample in samples]
    ids, how = _ids(groups, [sample.get("index") for sample in samples], hashes)
    return Record(
        entry.key, fields, ids, hashes, policy_version=_shared(versions), extra=extra | how, source=entry.file
    )


def train_record(data: Mapping[str, Any], groups: Mapping[int, str], entry: Entry) -> Record:
    """What the trainer computed: kind prepared_trajectories (with advantages), or old_log_probs."""
    samples = _train_samples(data)
    tokens = ragged([sample.get("tokens") for sample in samples])
    lengths = [
        int(_number(sample.get("response_lengths"), len(row))) for sample, row in zip(samples, tokens, strict=True)
    ]
    hashes = prompt_hashes(tokens, _response_mask(lengths, tokens))
    indices = [sample.get("sample_index") for sample in samples]
    ids, how = _ids([groups.get(index) if index is not None else None for index in indices], indices, hashes)
    extra = {key: plain(value) for key, value in data.items() if key not in {*_BATCH_FIELDS, "rollout_data"}} | how
    if entry.kind == "old_log_probs":
        fields: dict[str, Any] = {"old_log_probs": _column(samples, "log_probs")}
        names = dict.fromkeys(name for sample in samples for name in sample)
        extra |= {name: _column(samples, name) for name in names if _is_per_token(samples, name)}
        return Record(entry.key, fields, ids, hashes, coordinates=_place(data), extra=extra, source=entry.file)
    is_slice = _number(data.get("cp_size"), 1) > 1
    whole = (lambda column: column) if is_slice else (lambda column: after_prompt(column, tokens.lengths))
    masks = [_mask(sample.get("loss_masks"), n) for sample, n in zip(samples, lengths, strict=True)]
    fields = {"tokens": tokens, "loss_mask": after_prompt(ragged(masks), tokens.lengths)}
    for theirs, ours in (("rollout_log_probs", "logprobs"), ("advantages", "advantages")):
        if any(sample.get(theirs) is not None for sample in samples):
            fields[ours] = whole(_column(samples, theirs))
    fields["reward"] = numbers(sample.get("rewards") for sample in samples)
    fields["extra_fields"] = [
        _rest(sample, _TRAIN_USED | {name for name in sample if _is_per_token(samples, name)}) for sample in samples
    ]
    return Record(entry.key, fields, ids, hashes, coordinates=_place(data), extra=extra, source=entry.file)


def loss_record(data: Mapping[str, Any], entry: Entry) -> Record:
    """miles' policy_loss_debug: kind is_loss_debug. The file knows its call, not its step: `micro` is the call."""
    samples = _samples(data.get("samples"))
    names = {
        "train_log_probs": "log_probs",
        "old_log_probs": "old_log_probs",
        "advantages": "advantages",
        "local_loss_mask": "effective_valid",
    }
    fields: dict[str, Any] = {ours: _column(samples, theirs) for theirs, ours in names.items()}
    extra = {key: plain(value) for key, value in data.items() if key not in ("samples", "rank", "call")}
    rest = dict.fromkeys(name for sample in samples for name in sample if name not in names)
    extra |= {
        name: _column(samples, name) if _is_per_token(samples, name) else [s.get(name) for s in samples]
        for name in rest
    }
    return Record(entry.key, fields, extra=extra, source=entry.file)


def _samples(samples: Any) -> Sequence[_Sample]:
    if not isinstance(samples, list) or not all(isinstance(sample, Mapping) for sample in samples):
        raise Malformed("no list of samples")
    return samples


def _train_samples(data: Mapping[str, Any]) -> Sequence[_Sample]:
    """v2 has one mapping per sample; miles writes the rank's columns, which are turned into the same."""
    columns = data.get("rollout_data")
    if not isinstance(columns, Mapping):
        return _samples(data.get("samples"))
    count = max(_length(columns.get("tokens")), 0)
    per_sample = {name: values for name, values in columns.items() if _length(values) == count}
    renamed = {"sample_indices": "sample_index", "partition": "rollout_position"}
    return [{renamed.get(name, name): values[row] for name, values in per_sample.items()} for row in range(count)]


def _length(values: Any) -> int:
    """How many samples a column has; -1 for what is not a column. A list's rows may differ in length."""
    if isinstance(values, np.ndarray | EncodedArray):
        return len(values) if values.shape else -1
    return len(values) if isinstance(values, list | tuple) else -1


def _ids(
    groups: Sequence[Any], indices: Sequence[Any], hashes: Sequence[str]
) -> tuple[tuple[SampleId, ...], dict[str, Any]]:
    """(group_index, index) if the framework set them; else the prompt and the order, which is noted."""
    names = [hashes[row] if group is None else str(group) for row, group in enumerate(groups)]
    if not all(isinstance(index, int | np.integer) for index in indices):
        return ids_in_order(names), {IDS_FROM: "group or prompt, and order in the file"}
    made = {IDS_FROM: "prompt, and the sample's index"} if None in groups else {}
    return tuple(SampleId(name, int(index)) for name, index in zip(names, indices, strict=True)), made


def _mask(mask: Any, length: int) -> Any:
    """An absent mask means that the whole response is trained on."""
    return np.ones(length, np.int64) if mask is None else mask


def _or_nan(values: Any, length: int) -> Any:
    return np.full(length, np.nan) if values is None else values


def _response_mask(lengths: Sequence[int], tokens: Ragged) -> Ragged:
    return after_prompt(ragged([np.ones(length, bool) for length in lengths]), tokens.lengths)


def _single_version(versions: Any) -> int | None:
    """The weights that made a sample, when they did not change on the way."""
    texts = {str(version) for version in versions} if isinstance(versions, list | tuple) else set()
    text = texts.pop() if len(texts) == 1 else ""
    return int(text) if text.lstrip("-").isdigit() else None


def _shared(versions: Sequence[int | None]) -> int | None:
    return versions[0] if versions and len(set(versions)) == 1 else None


def _column(samples: Sequence[_Sample], name: str) -> Ragged:
    return ragged([sample.get(name) for sample in samples])


def _is_per_token(samples: Sequence[_Sample], name: str) -> bool:
    """Computed by the trainer for every response token: a flat tensor in each sample that has it."""
    if name in _TRAIN_USED:
        return False
    values = [sample[name] for sample in samples if sample.get(name) is not None]
    return bool(values) and all(isinstance(v, np.ndarray | EncodedArray) and len(v.shape) == 1 for v in values)


def _rest(sample: _Sample, used: frozenset[str] | set[str]) -> dict[str, Any]:
    """Everything else a sample knew, without absent values; a reward that is not a plain number stays readable."""
    rest = {key: plain(value) for key, value in sample.items() if key not in used and value is not None}
    if isinstance(rest.get("reward"), int | float | np.number | np.ndarray):
        del rest["reward"]
    return rest


def _conversation(sample: _Sample, messages: Mapping[int, Any]) -> dict[str, Any]:
    index = sample.get("index")
    return {"messages": messages[index]} if isinstance(index, int) and index in messages else {}


def _place(data: Mapping[str, Any]) -> dict[str, int]:
    return {"cp": int(data["cp_rank"])} if isinstance(data.get("cp_rank"), int) else {}


def _number(value: Any, default: float) -> float:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    return float(value) if isinstance(value, int | float | np.number) else default
