"""Files of one dictionary, pt or jsonl: our own when asked for, and those of the program whose format it is."""

from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.recording.formats.jsonl_file import load_jsonl
from rldbg.recording.formats.nexrl_dict import OWN_KEY, from_dict
from rldbg.recording.formats.pt_reader import load_pt
from rldbg.recording.layouts.base import IDS_FROM, Entry
from rldbg.recording.layouts.columns import ids_in_order, prompt_hashes
from rldbg.recording.layouts.pickled import plain
from rldbg.recording.records import Ragged, Record
from rldbg.recording.tree import Tree


def load_content(tree: Tree, file: str) -> Any:
    """The dictionary in a pt or jsonl file."""
    path = tree.local(file)
    return load_jsonl(path) if file.endswith(".jsonl") else load_pt(path, arrays=True)


def content_record(content: Any, entry: Entry) -> Record:
    """The record in a dictionary, with sample ids made where it holds none that can serve."""
    record = from_dict(entry.kind, plain(content), key=entry.key, source=entry.file)
    if record.samples or (isinstance(content, dict) and OWN_KEY in content):
        return record
    hashes = _hashes(record)
    groups = _groups(record) or hashes
    if not groups:
        return record
    extra = {**record.extra, IDS_FROM: "group or prompt, and order in the file"}
    return replace(record, samples=ids_in_order(groups), prompt_hashes=hashes, extra=extra)


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
