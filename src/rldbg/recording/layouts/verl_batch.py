"""verl's DataProto and TransferQueue batches: padded tensors by name, and lists of objects beside them.

P prompt tokens (padded on the left), R response tokens (padded on the right), as columns of input_ids [B, P + R].
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed, reading
from rldbg.recording.formats.pt_reader import Opaque, load_pickle, load_pt
from rldbg.recording.formats.torch_rebuild import BITS
from rldbg.recording.layouts.base import IDS_FROM, Entry
from rldbg.recording.layouts.columns import ids_in_order, prompt_hashes, unpadded
from rldbg.recording.layouts.pickled import plain
from rldbg.recording.records import EncodedArray, Ragged, Record

_SCORES = ("rm_scores", "token_level_scores", "token_level_rewards")
_LOGPROBS = ("rollout_log_probs", "rollout_logprobs")


def load_batch(path: Path) -> dict[str, Any]:
    """tensors, objects (one a sample) and meta of a batch file."""
    if path.suffix == ".pt":
        content = load_pt(path)
        with reading(path):
            others = {name: plain(value) for name, value in content.items() if name != "tensordict"}
            return {"tensors": _tensors(content["tensordict"]), "objects": {}, "meta": others}
    content = load_pickle(path)
    with reading(path):
        state = content.state if isinstance(content, Opaque) else None
        if isinstance(state, dict):
            state = (state.get("batch"), state.get("non_tensor_batch"), state.get("meta_info"))
        if not isinstance(state, tuple) or len(state) != 3:
            raise Malformed("a pickle, but no DataProto of verl")
        return {"tensors": _tensors(state[0]), "objects": state[1] or {}, "meta": plain(state[2] or {})}


def batch_record(content: Mapping[str, Any], entry: Entry) -> Record:
    tensors, objects = dict(content["tensors"]), content["objects"]
    ids, mask = tensors.pop("input_ids", None), tensors.pop("attention_mask", None)
    if not isinstance(ids, np.ndarray) or ids.ndim != 2:
        raise Malformed("the batch has no padded input_ids")
    keep = np.ones(ids.shape, bool) if mask is None else np.asarray(mask).astype(bool)
    columns = _Columns(ids, keep, _response_length(tensors, ids.shape))
    fields = _fields(columns, tensors)
    hashes = prompt_hashes(fields["tokens"], fields["loss_mask"])
    fields["extra_fields"] = [
        {name: plain(values[row]) for name, values in objects.items() if len(values) == len(ids)}
        for row in range(len(ids))
    ]
    groups = objects.get("uid") if objects.get("uid") is not None else objects.get("index")
    samples = ids_in_order(hashes if groups is None or len(groups) != len(ids) else groups)
    extra = {name: columns.cut(value) for name, value in tensors.items()}
    extra |= {"meta_info": content["meta"], IDS_FROM: "uid or prompt, and order in the batch"}
    return Record(entry.key, fields, samples, hashes, extra=extra, source=entry.file)


def _fields(columns: "_Columns", tensors: dict[str, Any]) -> dict[str, Any]:
    """The fields of a trajectory; what they are made from is taken out of `tensors`."""
    prompt = columns.prompt
    response_mask = tensors.pop("response_mask", tensors.pop("loss_mask", None))
    trained = columns.keep[:, prompt:] if response_mask is None else np.asarray(response_mask).astype(bool)
    fields: dict[str, Any] = {
        "tokens": columns.cut(columns.ids),
        "loss_mask": columns.cut(columns.widened(trained)),
    }
    for name in _LOGPROBS:
        if name in tensors:
            fields["logprobs"] = columns.cut(columns.widened(tensors.pop(name)))
    for name in _SCORES:
        if name in tensors and "reward" not in fields:
            scores = np.asarray(tensors[name], np.float64)
            fields["reward"] = scores.reshape(len(columns.ids), -1).sum(axis=1)
    for name, part in (("prompts", columns.ids[:, :prompt]), ("responses", columns.ids[:, prompt:])):
        if name in tensors and np.array_equal(tensors[name], part):
            del tensors[name]
    return fields


class _Columns:
    """How the columns of a batch are cut: what is prompt, what response, what padding."""

    def __init__(self, ids: np.ndarray, keep: np.ndarray, response: int) -> None:
        if keep.shape != ids.shape:
            raise Malformed(f"attention_mask has shape {keep.shape}, input_ids {ids.shape}")
        self.ids = ids
        self.keep = keep
        self.prompt = ids.shape[1] - response

    def widened(self, response: Any) -> Any:
        """[B, R] as [B, P + R] with zeros on the prompt."""
        bits = response.bits if isinstance(response, EncodedArray) else np.asarray(response)
        if bits.shape == self.ids.shape:
            return response
        if bits.shape != (len(self.ids), self.ids.shape[1] - self.prompt):
            raise Malformed(f"a tensor of shape {bits.shape} beside input_ids of {self.ids.shape}")
        wide = np.concatenate([np.zeros((len(self.ids), self.prompt), bits.dtype), bits], axis=1)
        return EncodedArray(wide, response.dtype) if isinstance(response, EncodedArray) else wide

    def cut(self, value: Any) -> Any:
        """A tensor without padding, where it has one value a token; anything else as it is."""
        if not isinstance(value, np.ndarray | EncodedArray):
            return plain(value)
        if value.shape == self.ids.shape:
            return unpadded(value, self.keep)
        if value.shape == self.ids[:, self.prompt :].shape:
            return unpadded(value, self.keep[:, self.prompt :])
        return value


def _response_length(tensors: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    for name in ("responses", "response_mask", *_LOGPROBS, *_SCORES):
        value = tensors.get(name)
        if value is not None and len(value.shape) == 2 and value.shape[1] <= shape[1]:
            return int(value.shape[1])
    prompts = tensors.get("prompts")
    return shape[1] - int(prompts.shape[1]) if prompts is not None and len(prompts.shape) == 2 else shape[1]


def _tensors(batch: Any) -> dict[str, Any]:
    """Name to array, from any of the ways a TensorDict has been written."""
    if batch is None:
        return {}
    if isinstance(batch, bytes):
        return _tensors(load_pt(batch))
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, Opaque):
        parts = [*batch.args, batch.state]
        found = next((part["_tensordict"] for part in parts if isinstance(part, dict) and "_tensordict" in part), None)
        if isinstance(found, dict):
            return found
    if isinstance(batch, tuple) and len(batch) == 3 and isinstance(batch[2], dict):
        return {name: _from_bytes(item) for name, item in batch[2].items()}
    raise Malformed("a TensorDict written in an unknown way")


def _from_bytes(item: Any) -> Any:
    """VERL_DATAPROTO_SERIALIZATION_METHOD=numpy: dtype, shape and bytes; nested tensors as a list of these."""
    if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[1], list):
        return Ragged.from_rows([np.asarray(_from_bytes(part)).reshape(-1) for part in item[1]])
    if not isinstance(item, tuple | list) or len(item) != 3 or item[0] not in BITS:
        raise Malformed("a tensor written in an unknown way")
    name, shape, raw = item
    array = np.frombuffer(np.asarray(raw).tobytes(), BITS[name]).reshape(tuple(shape))
    return EncodedArray(array, name) if array.dtype.name != name else array
