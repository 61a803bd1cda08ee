"""slime and its fork miles: rollout_data/<id>.pt (and eval_<id>.pt), train_data/<id>[_<rank>].pt, policy_loss_debug/.

A rollout id is the step. Train files hold what the trainer computed of the same samples: they are joined to the
rollout by the sample's index, and get its group from the rollout file beside them.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rldbg.core import IncompleteDataError
from rldbg.frameworks.slime.samples import loss_record, rollout_record, train_record
from rldbg.frameworks.slime.slices import whole_columns
from rldbg.recording import FileFact, Record, Tree, head
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.pt_reader import load_pt
from rldbg.recording.layouts.base import VALIDATION, Entry, Layout, Listing, listing_of, matches
from rldbg.recording.layouts.lines import json_lines
from rldbg.recording.layouts.pickled import mentions

_NUMBERED = re.compile(
    r"(?:^|/)(?P<folder>[^/]*)/(?P<stem>[^/]*?)(?P<eval>eval_)?(?P<step>\d+)(?:_(?P<rank>\d+))?\.pt$"
)
_LOSS = re.compile(r"(?:^|/)policy_loss_debug/rank_(?P<rank>\d+)_call_(?P<call>\d+)\.pt$")
# Made from the dumps beside them, for miles' dashboard and slime's viewer; and conversations, read with the rollout.
_DERIVED = r"(^|/)(dashboard_columns|tokenizer)/|(^|/)trajectory/(eval_)?\d+\.jsonl$|\.trace_timeline_[a-z_.]+$"


class _Content(NamedTuple):
    """A file's own data, and by sample index: the group, for train files; the conversation, for rollout files."""

    data: Mapping[str, Any]
    groups: Mapping[int, str]
    messages: Mapping[int, Any]


class SlimeLayout(Layout):
    name = "slime"
    looks_for = "rollout_data/<id>.pt or train_data/<id>[_<rank>].pt with rollout_id and samples"

    def recognises(self, tree: Tree) -> bool:
        return any(_part_of(tree, fact) for fact, _ in matches(tree, _NUMBERED)) or any(
            True for _ in matches(tree, _LOSS)
        )

    def survey(self, tree: Tree) -> Listing:
        entries = []
        for fact, found in matches(tree, _NUMBERED):
            part = _part_of(tree, fact)
            key = (int(found["step"]), int(found["rank"] or 0), 0, 0, 0)
            if part == "rollout":
                kind = VALIDATION if found["eval"] else "trajectory"
                entries.append(Entry(kind, *key, fact.name, fact.size))
            elif part == "train":
                kinds = ["prepared_trajectories"]
                if mentions(head(tree, fact.name), "log_probs"):
                    kinds.append("old_log_probs")
                entries += [Entry(kind, *key, fact.name, fact.size) for kind in kinds]
        for fact, found in matches(tree, _LOSS):
            call, rank = int(found["call"]), int(found["rank"])
            entries.append(Entry("is_loss_debug", 0, rank, call, 0, 0, fact.name, fact.size))
        return listing_of(tree, entries, ignored=_DERIVED)

    def load(self, tree: Tree, file: str) -> _Content:
        data = load_pt(tree.local(file), arrays=True)
        if not isinstance(data, Mapping):
            raise IncompleteDataError(
                f"{file}: not a mapping, so not a dump of slime", "rldbg show --layout names others"
            )
        is_rollout = "samples" in data and "format_version" not in data
        if is_rollout:
            return _Content(data, {}, _messages(tree, file))
        return _Content(whole_columns(tree, file, data), _groups(tree, file), {})

    def record(self, content: Any, entry: Entry) -> Record:
        if entry.kind == "is_loss_debug":
            return loss_record(content.data, entry)
        if entry.kind in ("trajectory", VALIDATION):
            return rollout_record(content.data, content.messages, entry)
        return train_record(content.data, content.groups, entry)


def _part_of(tree: Tree, fact: FileFact) -> str:
    """`rollout`, `train`, or nothing: by the keys it starts with."""
    start = head(tree, fact.name, 1 << 12)
    if not start.startswith(b"PK"):
        # Damaged files of a well-known folder are listed, so that reading them says what is wrong.
        folder = f"{tree.folder}/{fact.name}".rsplit("/", 2)[-2]
        return {"rollout_data": "rollout", "train_data": "train"}.get(folder, "")
    if not mentions(start, "rollout_id"):
        return ""
    if mentions(start, "format_version") or mentions(start, "rollout_data"):
        return "train"
    return "rollout"


def _messages(tree: Tree, file: str) -> dict[int, Any]:
    """miles keeps conversations in a file of their own, trajectory/<id>.jsonl, one sample per line."""
    found = re.search(r"(?P<before>(?:^|.*/))rollout_data/(?P<stem>(?:eval_)?\d+)\.pt$", file)
    name = f"{found['before']}trajectory/{found['stem']}.jsonl" if found else ""
    if not any(fact.name == name for fact in tree.files):
        return {}
    rows = json_lines(tree.local(name))
    return {row["sample_index"]: row["messages"] for row in rows if "sample_index" in row and "messages" in row}


def _groups(tree: Tree, file: str) -> dict[int, str]:
    """Sample index to group, from the rollout file of the same id; empty when there is none."""
    found = re.search(r"(?P<before>(?:^|.*/))train_data/(?P<step>\d+)(?:_\d+)?\.pt$", file)
    if not found:
        return {}
    name = f"{found['before']}rollout_data/{found['step']}.pt"
    if not any(fact.name == name for fact in tree.files):
        return {}
    try:
        data = load_pt(tree.local(name), arrays=True)
    except IncompleteDataError:
        return {}  # that file is named for itself; what the trainer computed can be read without it
    samples = data.get("samples") if isinstance(data, Mapping) else None
    if not isinstance(samples, list):
        raise Malformed(f"{name} has no samples")
    return {
        sample["index"]: str(sample["group_index"])
        for sample in samples
        if sample.get("index") is not None and sample.get("group_index") is not None
    }


LAYOUT = SlimeLayout()
