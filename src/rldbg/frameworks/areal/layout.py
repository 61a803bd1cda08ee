"""AReaL: rollout/<version>/<task>.jsonl (text), and batches of trajectories saved with torch.save (tokens)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.recording import EncodedArray, Record, Tree, head
from rldbg.recording.formats.batch_file import GROUP_IDS, RUN_IDS, group_names
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.pt_reader import load_pt
from rldbg.recording.layouts.base import IDS_FROM, VALIDATION, Entry, Layout, Listing, listing_of, matches
from rldbg.recording.layouts.columns import ids_in_order, numbers, prompt_hashes, ragged, unpadded
from rldbg.recording.layouts.lines import count_lines, first_lines, json_lines
from rldbg.recording.layouts.pickled import mentions
from rldbg.recording.layouts.tensordicts import named_tensors

_LINES = re.compile(r"(?:^|/)(?P<version>-?\d+)/(?P<task>[^/]+)\.jsonl$")
_BATCH = re.compile(r"(?:^|/)(?P<stem>[^/]+)\.pt$")
_STEP = re.compile(r"(?:step|version|batch)_?(\d+)|^(\d+)$")
_TOKENS = {"input_ids": "tokens", "loss_mask": "loss_mask", "logprobs": "logprobs", "versions": "policy_versions"}
_OURS = _TOKENS | {"rewards": "reward"}
_KNOWN = frozenset({*_OURS.values(), "advantages"})
_MASK = "attention_mask"
_GROUP_NAMES = "_group_names"


class ArealLayout(Layout):
    name = "areal"
    looks_for = "<version>/<task>.jsonl with task_id, or a .pt batch with input_ids and attention_mask"
    grows = True

    def recognises(self, tree: Tree) -> bool:
        if any(b'"task_id":' in line for line in first_lines(tree, matches(tree, _LINES))):
            return True
        return any(_is_batch(tree, fact.name) for fact, _ in matches(tree, _BATCH))

    def survey(self, tree: Tree) -> Listing:
        entries = []
        tasks: dict[tuple[str, int], int] = {}
        for fact, found in matches(tree, _LINES):
            kind = VALIDATION if "eval-rollout" in (tree.folder, *fact.name.split("/")) else "trajectory"
            step = int(found["version"])
            micro = tasks[kind, step] = tasks.get((kind, step), -1) + 1
            entries.append(Entry(kind, step, 0, micro, 0, 0, fact.name, fact.size))
        for fact, found in matches(tree, _BATCH):
            if _is_batch(tree, fact.name):
                number = _STEP.search(found["stem"])
                step = int(number[1] or number[2]) if number else 0
                kind = "prepared_trajectories" if mentions(head(tree, fact.name), "advantages") else "trajectory"
                entries.append(Entry(kind, step, 0, 0, 0, 0, fact.name, fact.size))
        return listing_of(tree, entries)

    def load(self, tree: Tree, file: str) -> Any:
        path = tree.local(file)
        if file.endswith(".jsonl"):
            return json_lines(path)
        content = load_pt(path)
        if isinstance(content, dict) and GROUP_IDS in content:
            return content | {_GROUP_NAMES: group_names(path)}
        return content

    def count_rows(self, tree: Tree, entry: Entry) -> int:
        if entry.file.endswith(".jsonl"):
            return count_lines(tree.local(entry.file))
        return super().count_rows(tree, entry)

    def record(self, content: Any, entry: Entry) -> Record:
        return _text_record(content, entry) if entry.file.endswith(".jsonl") else _batch_record(content, entry)


def _is_batch(tree: Tree, name: str) -> bool:
    start = head(tree, name)
    return mentions(start, "input_ids") and (mentions(start, _MASK) or mentions(start, "loss_mask"))


def _text_record(rows: Sequence[Mapping[str, Any]], entry: Entry) -> Record:
    fields: dict[str, Any] = {
        "reward": numbers(row.get("reward") for row in rows),
        "extra_fields": [{key: value for key, value in row.items() if key != "reward"} for row in rows],
    }
    if entry.kind == VALIDATION:
        fields["is_val"] = np.ones(len(rows), bool)
    places = [row.get("sample_idx") for row in rows]
    samples = tuple(
        SampleId(str(row.get("task_id")), index if isinstance(index, int) else place)
        for place, (row, index) in enumerate(zip(rows, places, strict=True))
    )
    return Record(entry.key, fields, samples, policy_version=entry.step, source=entry.file)


def _batch_record(content: Any, entry: Entry) -> Record:
    batches = [batch for batch in (content if isinstance(content, list | tuple) else [content]) if batch is not None]
    parts = [_Batch(batch) for batch in batches]
    names = dict.fromkeys(name for part in parts for name in (*part.tokens, *part.singles))
    fields: dict[str, Any] = {}
    for name in names:
        ours = _OURS.get(name, name)
        if any(name in part.tokens for part in parts):
            fields[ours] = ragged([row for part in parts for row in part.tokens.get(name) or [None] * part.rows])
        else:
            fields[ours] = numbers(value for part in parts for value in part.singles.get(name, [None] * part.rows))
    hashes = prompt_hashes(fields["tokens"], fields["loss_mask"]) if "loss_mask" in fields else ()
    samples = _own_ids(batches, parts) or ids_in_order(hashes or range(len(fields.get("tokens", ()))))
    rest = {name: fields.pop(name) for name in list(fields) if name not in _KNOWN}
    for part in parts:
        for name, value in part.others.items():
            rest.setdefault(name, []).append(value)
    if not _own_ids(batches, parts):
        rest[IDS_FROM] = "prompt and order in the file"
    return Record(entry.key, fields, samples, hashes, extra=rest, source=entry.file)


def _own_ids(batches: Sequence[Any], parts: Sequence["_Batch"]) -> tuple[SampleId, ...]:
    """The ids of a batch that carries them; a group has its name where the file has names."""
    if len(parts) != 1 or not {GROUP_IDS, RUN_IDS} <= set(parts[0].singles):
        return ()
    names = batches[0].get(_GROUP_NAMES) or ()
    groups = [int(number) for number in parts[0].singles[GROUP_IDS]]
    if names and not all(0 <= number < len(names) for number in groups):
        raise Malformed("a group has no name", "make the batch again")
    return tuple(
        SampleId(names[group] if names else str(group), int(run))
        for group, run in zip(groups, parts[0].singles[RUN_IDS], strict=True)
    )


class _Batch:
    """One padded batch taken apart: rows without padding, one value per sample, and the rest."""

    def __init__(self, batch: Any) -> None:
        batch = _padded(named_tensors(batch))
        ids = batch.get("input_ids")
        if not isinstance(ids, np.ndarray):
            raise Malformed("a batch without input_ids", "save the batch as the workflow returns it")
        shape = ids.shape if ids.ndim == 2 else (1, ids.size)
        mask = batch.get(_MASK)
        keep = np.ones(shape, bool) if mask is None else np.asarray(mask).reshape(shape).astype(bool)
        self.rows = shape[0]
        self.tokens: dict[str, list[Any]] = {}
        self.singles: dict[str, list[Any]] = {}
        self.others: dict[str, Any] = {}
        for name, value in batch.items():
            size = value.shape if isinstance(value, np.ndarray | EncodedArray) else None
            if name in (_MASK, _GROUP_NAMES):
                continue
            if size in (shape, ids.shape) and size is not None:
                self.tokens[name] = list(unpadded(_reshaped(value, shape), keep))
            elif size in ((self.rows,), (self.rows, 1)):
                self.singles[name] = list(_decoded(value).reshape(-1))
            else:
                self.others[name] = value


def _padded(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch whose samples are rows of a list, as one of padded arrays and a mask; any other as it is."""
    rows = batch.get("input_ids")
    if not isinstance(rows, list) or not all(isinstance(row, list | np.ndarray) for row in rows):
        return dict(batch)
    lengths = [len(row) for row in rows]
    padded: dict[str, Any] = {}
    for name, column in batch.items():
        is_rows = isinstance(column, list) and all(isinstance(row, list | np.ndarray) for row in column)
        if is_rows and [len(row) for row in column] == lengths:
            padded[name] = ragged(column).to_padded()
        elif isinstance(column, list) and len(column) == len(rows) and all(isinstance(v, int | float) for v in column):
            padded[name] = np.array(column)
        else:
            padded[name] = column
    present = np.arange(max(lengths, default=0)) < np.array(lengths).reshape(-1, 1)
    mask = padded.get(_MASK)
    return padded | {_MASK: present & mask.astype(bool) if isinstance(mask, np.ndarray) else present}


def _decoded(value: Any) -> np.ndarray:
    return value.decode() if isinstance(value, EncodedArray) else value


def _reshaped(value: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(value, EncodedArray):
        return EncodedArray(value.bits.reshape(shape), value.dtype)
    return value.reshape(shape)


LAYOUT = ArealLayout()
