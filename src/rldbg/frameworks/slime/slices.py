"""miles under context parallelism: each rank's train file holds slices of the per-token columns; put together here.

A sequence is cut into twice as many chunks as there are ranks in the group: chunks of its own length, or of the padded
length where sequences are not packed. Rank r computed chunk r and the r-th from the end. A column's i-th value belongs
to the i-th token of the response and was computed one position before it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.core import IncompleteDataError
from rldbg.recording import EncodedArray, Tree
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.pt_reader import load_pt

_RANK_FILE = re.compile(r"(?P<before>.*\D)?(?P<step>\d+)_(?P<rank>\d+)\.pt$")
_WHOLE_ON_EVERY_RANK = frozenset({"tokens", "loss_masks"})

_Data = Mapping[str, Any]


def whole_columns(tree: Tree, file: str, data: _Data) -> _Data:
    """The file's content with every sliced column whole; as it is where a rank of its group left no file."""
    columns, size = data.get("rollout_data"), data.get("cp_size")
    if not isinstance(columns, Mapping) or not isinstance(size, int) or size < 2:
        return data
    group = _group(tree, file, data, size)
    if len(group) < size:
        return data
    parts = [group[rank] for rank in range(size)]
    whole = {name: _joined(name, parts, data) for name in columns if _is_sliced(name, parts)}
    return {**data, "rollout_data": {**columns, **whole}, "cp_size": 1}


def _group(tree: Tree, file: str, data: _Data, size: int) -> dict[int, Mapping[str, Any]]:
    """The columns of each rank that holds slices of the same samples; the nearest ranks are asked first."""
    found = {int(data.get("cp_rank") or 0): data["rollout_data"]}
    own = _RANK_FILE.search(file)
    if own is None:
        return found
    beside = [
        (abs(int(match["rank"]) - int(own["rank"])), fact.name)
        for fact in tree.files
        if (match := _RANK_FILE.search(fact.name)) and match["before"] == own["before"] and match["step"] == own["step"]
    ]
    for _distance, name in sorted(beside):
        if len(found) == size:
            break
        try:
            other = load_pt(tree.local(name), arrays=True)
        except IncompleteDataError:
            continue  # that file is named for itself
        if _is_of_group(other, data):
            found.setdefault(int(other["cp_rank"]), other["rollout_data"])
    return found


def _is_of_group(other: Any, data: _Data) -> bool:
    if not isinstance(other, Mapping) or not isinstance(other.get("rollout_data"), Mapping):
        return False
    if other.get("cp_size") != data["cp_size"] or not isinstance(other.get("cp_rank"), int):
        return False
    return _plain(other["rollout_data"].get("sample_indices")) == _plain(data["rollout_data"].get("sample_indices"))


def _is_sliced(name: str, parts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether every rank has a flat array per sample under this name, and not all hold the same whole."""
    if name in _WHOLE_ON_EVERY_RANK:
        return False
    columns = [part.get(name) for part in parts]
    return all(isinstance(column, list) and column and all(_is_flat(values) for values in column) for column in columns)


def _joined(name: str, parts: Sequence[Mapping[str, Any]], data: _Data) -> list[Any]:
    columns = data["rollout_data"]
    totals, responses = _plain(columns.get("total_lengths")), _plain(columns.get("response_lengths"))
    padded = _plain(columns.get("max_seq_lens")) if data.get("qkv_format", "thd") != "thd" else totals
    if not len(padded) == len(totals) == len(responses) == len(parts[0][name]):
        raise Malformed(f"{name} and the lengths of its samples differ in number")
    rows = zip(*(part[name] for part in parts), strict=True)
    return [
        _whole(name, row, total, response, cut)
        for row, total, response, cut in zip(rows, totals, responses, padded, strict=True)
    ]


def _whole(name: str, slices: Sequence[Any], total: int, response: int, padded: int) -> Any:
    bits = [_bits(values) for values in slices]
    if all(len(values) == response for values in bits):
        return slices[0]  # a column that every rank has as a whole
    made = np.zeros(response, bits[0].dtype)
    for rank, values in enumerate(bits):
        taken = 0
        for place in places(total, response, rank, len(slices), padded):
            width = place.stop - place.start
            made[place] = values[taken : taken + width]
            taken += width
        if taken != len(values):
            raise Malformed(f"{name}: context-parallel rank {rank} has {len(values)} values where {taken} belong")
    return EncodedArray(made, slices[0].dtype) if isinstance(slices[0], EncodedArray) else made


def places(total: int, response: int, rank: int, size: int, padded: int) -> Iterator[slice]:
    """The positions of one rank's values in the response, in the order in which the rank has them."""
    chunk = -(-padded // (2 * size))
    first = total - response - 1
    for number in (rank, 2 * size - 1 - rank):
        start, stop = max(number * chunk, first), min((number + 1) * chunk, total - 1)
        if start < stop:
            yield slice(start - first, stop - first)


def _bits(values: np.ndarray | EncodedArray) -> np.ndarray:
    return values.bits if isinstance(values, EncodedArray) else values


def _is_flat(values: Any) -> bool:
    return isinstance(values, np.ndarray | EncodedArray) and len(values.shape) == 1


def _plain(values: Any) -> list[int]:
    return [int(value) for value in values] if isinstance(values, list | tuple | np.ndarray) else []
