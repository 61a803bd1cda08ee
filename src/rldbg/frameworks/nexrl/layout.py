"""NexRL: <kind>/step_<N>[_rank<R>][_micro<M>].pt or .jsonl, one dictionary per file."""

from collections.abc import Mapping
from typing import Any

from rldbg.core import IncompleteDataError
from rldbg.recording import KINDS, Record, Tree, head
from rldbg.recording.layouts import step_files
from rldbg.recording.layouts.base import Entry, Layout, Listing, listing_of
from rldbg.recording.layouts.dictionary_files import content_record, load_content
from rldbg.recording.layouts.pickled import mentions

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


def _has_step(start: bytes) -> bool:
    return mentions(start, "step") or start.lstrip().startswith(b'{"step"')


def _has_key(start: bytes, key: str) -> bool:
    return mentions(start, key) or f'"{key}":'.encode() in start


LAYOUT = NexrlLayout()
