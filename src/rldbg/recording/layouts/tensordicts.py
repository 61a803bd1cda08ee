"""TensorDicts in files of other programs: name to array, in whichever way they were written."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.pt_reader import Opaque, load_pt
from rldbg.recording.formats.tagged_json import ragged_of
from rldbg.recording.formats.torch_rebuild import BITS
from rldbg.recording.layouts.pickled import plain
from rldbg.recording.records import EncodedArray, Ragged


def named_tensors(batch: Any) -> dict[str, Any]:
    """Name to array, from any of the ways a TensorDict has been written."""
    if batch is None:
        return {}
    if isinstance(batch, bytes):
        return named_tensors(load_pt(batch))
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


def ragged_or_list(value: Any) -> Any:
    """torch's jagged tensors as ragged rows, and stacks of plain values as lists."""
    if not isinstance(value, Opaque):
        return value
    parts = value.args[0] if value.args and isinstance(value.args[0], dict) else {}
    if isinstance(parts.get("offsets"), np.ndarray) and parts.get("values") is not None:
        return ragged_of(parts["values"], np.diff(parts["offsets"]).astype(np.int64))
    stacked = value.attributes().get("tensordicts")
    if isinstance(stacked, list):
        return [_non_tensor(item) for item in stacked]
    return value


def _non_tensor(item: Any) -> Any:
    held = item.attributes() if isinstance(item, Opaque) else {}
    inner = held.get("non_tensordict", held.get("_non_tensordict", held))
    return plain(inner.get("data", item)) if isinstance(inner, dict) else plain(item)


def _from_bytes(item: Any) -> Any:
    """Tensors written as (dtype, shape, bytes); nested ones as a list of these."""
    if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[1], list):
        return Ragged.from_rows([np.asarray(_from_bytes(part)).reshape(-1) for part in item[1]])
    if not isinstance(item, tuple | list) or len(item) != 3 or item[0] not in BITS:
        raise Malformed("a tensor written in an unknown way")
    name, shape, raw = item
    array = np.frombuffer(np.asarray(raw).tobytes(), BITS[name]).reshape(tuple(shape))
    return EncodedArray(array, name) if array.dtype.name != name else array
