"""NexRL: <kind>/step_<N>[_rank<R>][_micro<M>].pt or .jsonl, one dictionary a file."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rldbg.core import IncompleteDataError
from rldbg.recording.formats.jsonl_file import load_jsonl
from rldbg.recording.formats.nexrl_dict import OWN_KEY, from_dict
from rldbg.recording.formats.pt_reader import load_pt
from rldbg.recording.kinds import KINDS
from rldbg.recording.layouts import step_files
from rldbg.recording.layouts.base import IDS_FROM, Entry, Layout, Listing, listing_of
from rldbg.recording.layouts.columns import ids_in_order, prompt_hashes
from rldbg.recording.layouts.pickled import mentions, plain
from rldbg.recording.records import Ragged, Record
from rldbg.recording.tree import Tree, head

_FORMATS = ("pt", "jsonl")
# Keys by which a file is recognised that lies outside of its folder, and those that tell its kind, in this order.
_SIGNS = ("num_trajectories", "num_datums", "log_probs_shape", "param_name")
_KEYS_OF: Mapping[str, frozenset[str]] = {
    "prepared_trajectories": frozenset({"num_trajectories", "trajectories", "advantages"}),
    "trajectory": frozenset({"num_trajectories", "trajectories"}),
    "datums": frozenset({"num_datums", "datums"}),
    "forward_data": frozenset({"log_probs", "log_probs_shape"}),
    "param": frozenset({"param_name", "param"}),
    "gradient": frozenset({"param_name", "gradient"}),
}


class NexrlLayout(Layout):
    name = "nexrl"
    looks_for = "<kind>/step_<N>[_rank<R>][_micro<M>].pt or .jsonl, kinds such as trajectory, forward_data, loss"
    is_regular = True

    def recognises(self, tree: Tree) -> bool:
        if _lone_file(tree) is not None:
            return True
        for fact in tree.files:
            parsed = step_files.parse(tree.folder, fact.name)
            if parsed is None or parsed.format not in _FORMATS:
                continue
            if parsed.kind in KINDS or _has_step(head(tree, fact.name, 1 << 12)):
                return True
        return False

    def survey(self, tree: Tree) -> Listing:
        lone = _lone_file(tree)
        if lone is not None:
            return listing_of(tree, [lone])
        entries = []
        for fact in tree.files:
            parsed = step_files.parse(tree.folder, fact.name)
            if parsed is not None and parsed.format in _FORMATS:
                entries.append(Entry(*parsed[:6], fact.name, fact.size))
        return listing_of(tree, entries)

    def load(self, tree: Tree, file: str) -> Any:
        return load_content(tree, file)

    def record(self, content: Any, entry: Entry) -> Record:
        return content_record(content, entry)


def _lone_file(tree: Tree) -> Entry | None:
    """The record in a single file outside of its kind's folder: its keys say what it is. None for any other tree."""
    if len(tree.files) != 1 or not tree.files[0].name.endswith(tuple(f".{name}" for name in _FORMATS)):
        return None
    fact = tree.files[0]
    parsed = step_files.parse(tree.folder, fact.name)
    start = head(tree, fact.name, 1 << 12)
    if (parsed is not None and parsed.kind in KINDS) or not any(_has_key(start, key) for key in _SIGNS):
        return None
    try:
        content = load_content(tree, fact.name)
    except IncompleteDataError:
        return None
    keys = content.keys() if isinstance(content, dict) else set()
    kind = next((kind for kind, needed in _KEYS_OF.items() if needed <= keys), None)
    if kind is None:
        return None
    step, rank, micro = (content.get(name, 0) for name in ("step", "rank", "micro_idx"))
    if not all(type(place) is int for place in (step, rank, micro)):
        return None
    return Entry(kind, step, rank, micro, 0, 0, fact.name, fact.size)


def load_content(tree: Tree, file: str) -> Any:
    """The dictionary in a pt or jsonl file."""
    path = tree.local(file)
    return load_jsonl(path) if file.endswith(".jsonl") else load_pt(path, arrays=True)


def content_record(content: Any, entry: Entry) -> Record:
    """The record in a dictionary of the document, with ids made where NexRL wrote none that can serve."""
    record = from_dict(entry.kind, plain(content), key=entry.key, source=entry.file)
    if record.samples or (isinstance(content, dict) and OWN_KEY in content):
        return record
    hashes = _hashes(record)
    groups = _groups(record) or hashes
    if not groups:
        return record
    made = {IDS_FROM: "group or prompt, and order in the file"}
    return Record(
        record.key,
        record.fields,
        ids_in_order(groups),
        hashes,
        extra={**record.extra, **made},
        source=record.source,
    )


def _has_step(start: bytes) -> bool:
    return mentions(start, "step") or start.lstrip().startswith(b'{"step"')


def _has_key(start: bytes, key: str) -> bool:
    return mentions(start, key) or f'"{key}":'.encode() in start


def _groups(record: Record) -> list[str]:
    """The group of each sample, when all have one."""
    rows = record.fields.get("extra_fields") or []
    groups = [row.get("group_id", row.get("uid")) if isinstance(row, dict) else None for row in rows]
    return [str(group) for group in groups] if groups and None not in groups else []


def _hashes(record: Record) -> tuple[str, ...]:
    """Of trajectories, and of datums, whose tokens and mask are those of the trajectory one place to the left.

    Without a mask nothing tells the prompt from the response: the hash is then of the whole sequence.
    """
    tokens, mask = record.fields.get("tokens"), record.fields.get("loss_mask")
    inputs, targets = record.fields.get("input_tokens"), record.fields.get("target_tokens")
    if isinstance(inputs, Ragged) and isinstance(targets, Ragged):
        tokens = Ragged.from_rows([np.append(row[:1], target) for row, target in zip(inputs, targets, strict=True)])
        if isinstance(mask, Ragged):
            mask = Ragged.from_rows([np.insert(np.asarray(row), 0, 0) for row in mask])
    if not isinstance(tokens, Ragged):
        return ()
    if mask is None:
        mask = Ragged(np.zeros(len(tokens.values), bool), tokens.offsets)
    return prompt_hashes(tokens, mask) if isinstance(mask, Ragged) else ()
