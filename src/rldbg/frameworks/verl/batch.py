"""verl's DataProto and TransferQueue batches: padded tensors by name, and lists of objects beside them.

P prompt tokens (padded on the left), R response tokens (padded on the right), as columns of input_ids [B, P + R].
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.recording import EncodedArray, Ragged, Record
from rldbg.recording.formats.malformed import Malformed, reading
from rldbg.recording.formats.pt_reader import Opaque, load_pickle, load_pt
from rldbg.recording.layouts.base import IDS_FROM, Entry
from rldbg.recording.layouts.columns import after_prompt, ids_in_order, prompt_hashes, unpadded
from rldbg.recording.layouts.pickled import plain
from rldbg.recording.layouts.tensordicts import named_tensors, ragged_or_list

_SAMPLE_OF_PROMPT = re.compile(r"_\d+_\d+$")
_SCORES = ("rm_scores", "token_level_scores", "token_level_rewards")
_LOGPROBS = ("rollout_log_probs", "rollout_logprobs")


def load_batch(path: Path) -> dict[str, Any]:
    """tensors, objects (one per sample) and meta of a batch file."""
    if path.suffix == ".pt":
        content = load_pt(path)
        with reading(path):
            named = {name: ragged_or_list(value) for name, value in named_tensors(content["tensordict"]).items()}
            # Keys are <uid>_<session>_<index>; the uid is a prompt's.
            objects = {"key": content["keys"], "uid": [str(key).rsplit("_", 2)[0] for key in content["keys"]]}
            objects |= {name: value for name, value in named.items() if isinstance(value, list)}
            tensors = {name: value for name, value in named.items() if not isinstance(value, list)}
            meta = {name: plain(value) for name, value in content.items() if name not in ("tensordict", "keys")}
            return {"tensors": tensors, "objects": objects, "meta": meta}
    content = load_pickle(path)
    with reading(path):
        state = content.state if isinstance(content, Opaque) else None
        if isinstance(state, dict):
            state = (state.get("batch"), state.get("non_tensor_batch"), state.get("meta_info"))
        if not isinstance(state, tuple) or len(state) != 3:
            raise Malformed("a pickle, but not a DataProto of verl")
        return {"tensors": named_tensors(state[0]), "objects": state[1] or {}, "meta": plain(state[2] or {})}


def prompt_uid(key: Any) -> str:
    """The uid of a sample's prompt; the newer trainer names samples <uid>_<session>_<index>."""
    return _SAMPLE_OF_PROMPT.sub("", str(key))


def batch_record(content: Mapping[str, Any], entry: Entry) -> Record:
    tensors, objects = dict(content["tensors"]), content["objects"]
    ids, mask = tensors.pop("input_ids", None), tensors.pop("attention_mask", None)
    columns: _Padded | _Jagged
    if isinstance(ids, Ragged):
        columns = _Jagged(ids)
    elif isinstance(ids, np.ndarray) and ids.ndim == 2:
        columns = _Padded(ids, mask, _response_length(tensors, ids.shape))
    else:
        raise Malformed("the batch has no input_ids")
    fields = _fields(columns, tensors)
    count = len(fields["tokens"])
    hashes = prompt_hashes(fields["tokens"], fields["loss_mask"])
    fields["extra_fields"] = [
        {name: plain(values[row]) for name, values in objects.items() if len(values) == count} for row in range(count)
    ]
    groups = next((objects[name] for name in ("uid", "index") if len(objects.get(name, ())) == count), hashes)
    extra = {name: columns.cut(value) for name, value in tensors.items()}
    extra |= {"meta_info": content["meta"], IDS_FROM: "uid or prompt, and order in the batch"}
    return Record(entry.key, fields, ids_in_order(groups), hashes, extra=extra, source=entry.file)


def _fields(columns: "_Padded | _Jagged", tensors: dict[str, Any]) -> dict[str, Any]:
    """The fields of a trajectory; what they are made from is taken out of `tensors`."""
    response_mask = tensors.pop("response_mask", tensors.pop("loss_mask", None))
    fields: dict[str, Any] = {"tokens": columns.tokens, "loss_mask": columns.on_sequence(response_mask)}
    for name in _LOGPROBS:
        if name in tensors:
            fields["logprobs"] = columns.on_sequence(tensors.pop(name))
    for name in _SCORES:
        if name in tensors and "reward" not in fields:
            scores = columns.on_sequence(tensors[name])
            fields["reward"] = np.array([np.asarray(row, np.float64).sum() for row in scores])
    for name, part in columns.parts().items():
        if name in tensors and np.array_equal(tensors[name], part):
            del tensors[name]
    return fields


class _Padded:
    """A batch of padded tensors: what is prompt, what response, what padding."""

    def __init__(self, ids: np.ndarray, mask: Any, response: int) -> None:
        self.ids = ids
        self.keep = np.ones(ids.shape, bool) if mask is None else np.asarray(mask).astype(bool)
        if self.keep.shape != ids.shape:
            raise Malformed(f"attention_mask has shape {self.keep.shape}, input_ids {ids.shape}")
        self.prompt = ids.shape[1] - response
        self.tokens = unpadded(ids, self.keep)

    def parts(self) -> dict[str, np.ndarray]:
        """Tensors that only repeat what input_ids hold."""
        return {"prompts": self.ids[:, : self.prompt], "responses": self.ids[:, self.prompt :]}

    def on_sequence(self, response: Any) -> Ragged:
        """[B, R] without padding and with zeros on the prompt; the whole response where there is no mask."""
        if response is None:
            response = self.keep[:, self.prompt :]
        bits = response.bits if isinstance(response, EncodedArray) else np.asarray(response)
        if bits.shape != self.ids.shape:
            if bits.shape != (len(self.ids), self.ids.shape[1] - self.prompt):
                raise Malformed(f"a tensor of shape {bits.shape} does not match input_ids of shape {self.ids.shape}")
            bits = np.concatenate([np.zeros((len(self.ids), self.prompt), bits.dtype), bits], axis=1)
        return unpadded(EncodedArray(bits, response.dtype) if isinstance(response, EncodedArray) else bits, self.keep)

    def cut(self, value: Any) -> Any:
        """A tensor without padding, where it has one value per token; anything else as it is."""
        if not isinstance(value, np.ndarray | EncodedArray):
            return plain(value)
        if value.shape == self.ids.shape:
            return unpadded(value, self.keep)
        if value.shape == self.ids[:, self.prompt :].shape:
            return unpadded(value, self.keep[:, self.prompt :])
        return value


class _Jagged:
    """A batch of jagged tensors, which have no padding."""

    def __init__(self, tokens: Ragged) -> None:
        self.tokens = tokens

    def parts(self) -> dict[str, np.ndarray]:
        return {}

    def on_sequence(self, response: Any) -> Ragged:
        if response is None:
            return Ragged(np.ones(len(self.tokens.values), bool), self.tokens.offsets)
        if not isinstance(response, Ragged):
            raise Malformed("a padded tensor together with jagged input_ids")
        return after_prompt(response, self.tokens.lengths)

    def cut(self, value: Any) -> Any:
        return value if isinstance(value, Ragged | np.ndarray | EncodedArray) else plain(value)


def _response_length(tensors: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    for name in ("responses", "response_mask", *_LOGPROBS, *_SCORES):
        value = tensors.get(name)
        if value is not None and len(value.shape) == 2 and value.shape[1] <= shape[1]:
            return int(value.shape[1])
    prompts = tensors.get("prompts")
    return shape[1] - int(prompts.shape[1]) if prompts is not None and len(prompts.shape) == 2 else shape[1]
