"""verl: rollout and validation text (<dir>/<step>.jsonl) and rollout-skip caches (<step>/gen_batch.dp, tq_batch.pt)."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.frameworks.verl.batch import batch_record, load_batch, prompt_uid
from rldbg.recording import Record, Tree, head
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.layouts.base import IDS_FROM, VALIDATION, Entry, Layout, Listing, listing_of, matches
from rldbg.recording.layouts.columns import ids_in_order, numbers, text_group
from rldbg.recording.layouts.lines import count_lines, first_lines, json_lines

_LINES = re.compile(r"(?:^|/)(?P<step>\d+)\.jsonl$")
_BATCH = re.compile(r"(?:^|/)(?:(?P<step>\d+)/)?gen_batch\.dp$")
_QUEUE = re.compile(r"(?:^|/)(?P<step>\d+)/(?P<inner>\d+)/tq_batch\.pt$")
_OLD_BATCH = re.compile(r"(?:^|/)[^/]*_GBS\d+__N\d+(?:_in\d+_out\d+)?(?P<step>)$")
_VALIDATION = re.compile(r"(?:^|[-_.])(?:val|valid|validation|eval|evaluation)(?:$|[-_.])")


class VerlLayout(Layout):
    name = "verl"
    looks_for = "<step>.jsonl with input and output, or <step>/gen_batch.dp"

    def recognises(self, tree: Tree) -> bool:
        if any(True for pattern in (_BATCH, _QUEUE) for _ in matches(tree, pattern)):
            return True
        if any(b"verl.protocol" in head(tree, fact.name, 200) for fact, _ in matches(tree, _OLD_BATCH)):
            return True
        return any(map(_is_generation, first_lines(tree, matches(tree, _LINES))))

    def survey(self, tree: Tree) -> Listing:
        entries = []
        for fact, found in matches(tree, _LINES):
            folder = f"{tree.folder}/{fact.name}".rsplit("/", 2)[-2]
            kind = VALIDATION if _VALIDATION.search(folder) else "trajectory"
            entries.append(Entry(kind, int(found["step"]), 0, 0, 0, 0, fact.name, fact.size))
        for pattern in (_BATCH, _OLD_BATCH, _QUEUE):
            for fact, found in matches(tree, pattern):
                step = int(found["step"] or _global_step(tree.local(fact.name).parent / "meta.json"))
                micro = int(found["inner"]) if pattern is _QUEUE else 0
                entries.append(Entry("trajectory", step, 0, micro, 0, 0, fact.name, fact.size))
        return listing_of(tree, entries, ignored=r"(^|/)meta\.json$")

    def load(self, tree: Tree, file: str) -> Any:
        path = tree.local(file)
        return json_lines(path) if file.endswith(".jsonl") else load_batch(path)

    def count_rows(self, tree: Tree, entry: Entry) -> int:
        if entry.file.endswith(".jsonl"):
            return count_lines(tree.local(entry.file))
        return super().count_rows(tree, entry)

    def record(self, content: Any, entry: Entry) -> Record:
        return _text_record(content, entry) if entry.file.endswith(".jsonl") else batch_record(content, entry)


def _is_generation(start: bytes) -> bool:
    return start.lstrip().startswith(b'{"input"') or (b'"input":' in start and b'"output":' in start)


def _text_record(rows: Sequence[Mapping[str, Any]], entry: Entry) -> Record:
    if not all("output" in row for row in rows):
        raise Malformed("a line without output: no generations of verl")
    fields: dict[str, Any] = {
        "reward": numbers(row.get("score", row.get("reward")) for row in rows),
        "extra_fields": [dict(row) for row in rows],
    }
    if entry.kind == VALIDATION:
        fields["is_val"] = np.ones(len(rows), bool)
    groups = [prompt_uid(row["uid"]) if row.get("uid") else text_group(row.get("input")) for row in rows]
    extra = {IDS_FROM: "prompt and order in the file"}
    return Record(entry.key, fields, ids_in_order(groups), extra=extra, source=entry.file)


def _global_step(meta: Path) -> int:
    try:
        step = json.loads(meta.read_bytes()).get("global_steps", 0)
    except (OSError, ValueError, AttributeError):
        return 0
    return step if isinstance(step, int) else 0


LAYOUT = VerlLayout()
