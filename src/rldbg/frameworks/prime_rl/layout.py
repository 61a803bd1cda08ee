"""prime-rl: token_exports/step_<N>/rank_<R>.jsonl (one sequence per line, STABLE marker), rollouts/.../rank_<R>.bin,
and the orchestrator's trace stream, rollouts/step_<N>/<train|eval>/<all|effective>/traces.jsonl.

A rank's batch (.bin) is what its trainer got, its token export that and what the trainer made of it: where there are
both, the export is read.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rldbg.core import Finding, IncompleteDataError, SampleId, Severity
from rldbg.frameworks.prime_rl.batches import micro_batches, sequences
from rldbg.frameworks.prime_rl.traces import trace_record
from rldbg.recording import Record, Tree, head
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.msgpack_reader import read_msgpack
from rldbg.recording.layouts.base import IDS_FROM, UNCOUNTED, VALIDATION, Entry, Layout, Listing, listing_of, matches
from rldbg.recording.layouts.columns import prompt_hashes, ragged
from rldbg.recording.layouts.lines import json_lines

_FILE = re.compile(r"(?:^|/)step_(?P<step>\d+)/rank_(?P<rank>\d+)\.jsonl$")
_BATCH = re.compile(r"(?:^|/)step_(?P<step>\d+)/rank_(?P<rank>\d+)\.bin$")
_TRACES = re.compile(r"(?:^|/)step_(?P<step>\d+)/(?P<kind>train|eval)/(?P<subset>all|effective)/traces\.jsonl$")
_MICRO = re.compile(rb'"micro_step": ?(\d+)')
_HEAD_BYTES = 400
_RANK_STRIDE = 1_000_000
# prime-rl's column: ours, by kind
_COLUMNS = {
    "prepared_trajectories": {
        "token_ids": "tokens",
        "loss_mask": "loss_mask",
        "inference_logprobs": "logprobs",
        "advantages": "advantages",
    },
    "forward_data": {
        "trainer_logprobs": "log_probs",
        "entropy": "entropy",
        "loss_mask": "response_mask",
        "token_ids": "input_ids",
    },
    "is_loss_debug": {
        "trainer_logprobs": "log_probs",
        "inference_logprobs": "old_log_probs",
        "advantages": "advantages",
        "importance_ratio": "prob_ratio",
    },
}
_OF_FILE = frozenset({"schema_version", "step", "rank", "micro_step", "env_name", "env_names"})
_INDICES = ("micro_sequence_idx", "export_sequence_idx")


class PrimeRlLayout(Layout):
    name = "prime_rl"
    looks_for = (
        "token_exports/step_<N>/rank_<R>.jsonl with trainer_logprobs, rollouts/step_<N>/rank_<R>.bin, or traces.jsonl"
    )
    grows = True

    def recognises(self, tree: Tree) -> bool:
        exported = any(b'"micro_step"' in head(tree, fact.name, _HEAD_BYTES) for fact, _ in matches(tree, _FILE))
        batches = any(micro_batches(head(tree, fact.name, 16)) for fact, _ in matches(tree, _BATCH))
        return exported or batches or any(True for _ in matches(tree, _TRACES))

    def survey(self, tree: Tree) -> Listing:
        entries = []
        for fact, found in matches(tree, _FILE):
            for micro, rows in _micros(tree, fact.name).items():
                key = (int(found["step"]), int(found["rank"]), micro, 0, 0)
                entries += [Entry(kind, *key, fact.name, fact.size, micro, rows) for kind in _COLUMNS]
        exported = {(entry.step, entry.rank) for entry in entries}
        known = [r"(^|/)STABLE$"]
        for fact, found in matches(tree, _BATCH):
            step, rank = int(found["step"]), int(found["rank"])
            if (step, rank) in exported:
                known.append(f"^{re.escape(fact.name)}$")
                continue
            count = micro_batches(head(tree, fact.name, 16))
            places = ((step, rank, micro, 0, 0, fact.name, fact.size, micro) for micro in range(count))
            entries += [Entry("prepared_trajectories", *place) for place in places]
        traced, superseded = _traces(tree)
        return listing_of(tree, [*entries, *traced], _unstable(tree), ignored="|".join(known + superseded))

    def load(self, tree: Tree, file: str) -> list[Any]:
        if not file.endswith(".bin"):
            return json_lines(tree.local(file))
        content = read_msgpack(tree.local(file).read_bytes())
        if not isinstance(content, list):
            raise Malformed("no list of micro-batches")
        return content

    def record(self, content: Any, entry: Entry) -> Record:
        if entry.file.endswith("traces.jsonl"):
            return trace_record(content, entry)
        is_batch = entry.file.endswith(".bin")
        rows = (
            sequences(content, entry.part)
            if is_batch
            else [row for row in content if row.get("micro_step") == entry.part]
        )
        columns = _COLUMNS[entry.kind]
        fields: dict[str, Any] = {
            ours: ragged([row.get(theirs) for row in rows])
            for theirs, ours in columns.items()
            if any(row.get(theirs) is not None for row in rows)
        }
        extra: dict[str, Any] = {IDS_FROM: "prompt and place in the file"}
        if entry.kind == "is_loss_debug":
            fields["effective_valid"] = ragged([_valid(row) for row in rows])
        elif entry.kind == "prepared_trajectories":
            fields["extra_fields"] = [{"env_name": row.get("env_name")} for row in rows]
            extra |= _rest(rows) if is_batch else {}
        else:
            extra |= _rest(rows)
        hashes = _hashes(rows)
        return Record(entry.key, fields, _ids(rows, hashes, entry), hashes, extra=extra, source=entry.file)


def _traces(tree: Tree) -> tuple[list[Entry], list[str]]:
    """Trace streams, and patterns of those that others supersede: `effective` has what was trained on of `all`."""
    found = list(matches(tree, _TRACES))
    effective = {(each["step"], each["kind"]) for _, each in found if each["subset"] == "effective"}
    entries, superseded = [], []
    for fact, each in found:
        if each["subset"] == "all" and (each["step"], each["kind"]) in effective:
            superseded.append(f"^{re.escape(fact.name)}$")
            continue
        kind = VALIDATION if each["kind"] == "eval" else "trajectory"
        entries.append(Entry(kind, int(each["step"]), 0, 0, 0, 0, fact.name, fact.size))
    return entries, superseded


def _micros(tree: Tree, name: str) -> dict[int, int]:
    """Micro-batch numbers of a file with the number of lines of each, from the start of each line."""
    counts: dict[int, int] = {}
    try:
        with tree.local(name).open("rb") as file:
            for line in file:
                found = _MICRO.search(line[:_HEAD_BYTES])
                if found:
                    counts[int(found[1])] = counts.get(int(found[1]), 0) + 1
    except (OSError, IncompleteDataError):
        return {0: UNCOUNTED}  # listed, so that reading it says what is wrong
    return counts


def _unstable(tree: Tree) -> list[Finding]:
    stable = {fact.name.rpartition("/")[0] for fact in tree.files if fact.name.rpartition("/")[2] == "STABLE"}
    folders = sorted({fact.name.rpartition("/")[0] for fact, _ in matches(tree, _FILE)} - stable)
    return [
        Finding(
            "unfinished-writer",
            Severity.WARNING,
            f"{tree.title}/{folder}".rstrip("/"),
            ("the STABLE marker next to the rank files is missing",),
            "the trainer had not finished exporting this step",
            ("wait for the step to end, or leave this step out",),
        )
        for folder in folders
        if len(tree.files) > 1
    ]


def _valid(row: dict[str, Any]) -> np.ndarray:
    """Tokens that count: trained on, and not masked out by the loss."""
    mask = np.array([bool(value) for value in row.get("loss_mask") or ()])
    masked = np.array([bool(value) for value in row.get("is_masked") or [False] * len(mask)])
    if len(mask) != len(masked):
        raise Malformed("is_masked and loss_mask differ in length")
    valid: np.ndarray = mask & ~masked
    return valid


def _rest(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Columns that no kind of ours has a place for, whole."""
    used = {theirs for columns in _COLUMNS.values() for theirs in columns} | _OF_FILE
    names = dict.fromkeys(name for row in rows for name in row if name not in used)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {
        name: ragged(values) if name not in _INDICES and all(map(_is_numbers, values)) else values
        for name, values in columns.items()
    }


def _is_numbers(value: Any) -> bool:
    """Whether a value can be a row of numbers, with gaps."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    if not isinstance(value, list):
        return value is None or isinstance(value, int | float)
    return all(item is None or isinstance(item, int | float) for item in value)


def _ids(rows: Sequence[dict[str, Any]], hashes: Sequence[str], entry: Entry) -> tuple[SampleId, ...]:
    """Nothing in the file names a sample: the prompt is its group, its place in the rank's file makes it unique."""
    places = [int(row.get("export_sequence_idx", place)) for place, row in enumerate(rows)]
    groups = hashes or [f"micro{entry.micro}"] * len(rows)
    return tuple(
        SampleId(group, entry.rank * _RANK_STRIDE + place) for group, place in zip(groups, places, strict=True)
    )


def _hashes(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    if not all("token_ids" in row and "loss_mask" in row for row in rows):
        return ()
    return prompt_hashes(ragged([row["token_ids"] for row in rows]), ragged([row["loss_mask"] for row in rows]))


LAYOUT = PrimeRlLayout()
