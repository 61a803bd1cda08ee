"""prime-rl's trace stream: rollouts/step_<N>/<train|eval>/<all|effective>/traces.jsonl, one episode per line.

An episode has the traces of its agents; a trace is a graph of messages, each with the tokens that it adds. A path from
a root to a leaf is one training sample. Log probs and advantages of a message are those of its sampled tokens alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.recording import Record
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.layouts.base import IDS_FROM, VALIDATION, Entry
from rldbg.recording.layouts.columns import ids_in_order, numbers, prompt_hashes, ragged

_KEPT = ("id", "ok", "stop_condition", "rewards", "metrics")


def trace_record(episodes: Sequence[Mapping[str, Any]], entry: Entry) -> Record:
    """The samples of a file, in its order; what was sampled has a mask of 1."""
    found = [(episode, trace, path) for episode in episodes for trace, path in _paths(episode)]
    paths = [path for _, _, path in found]
    tokens = ragged([_joined(path, "token_ids") for path in paths])
    mask = ragged([np.asarray(_joined(path, "mask"), np.int64) for path in paths])
    fields: dict[str, Any] = {
        "tokens": tokens,
        "loss_mask": mask,
        "reward": numbers(_reward(trace) for _, trace, _ in found),
        "logprobs": ragged([_spread(path, "logprobs") for path in paths]),
        "extra_fields": [_about(episode, trace) for episode, trace, _ in found],
    }
    if entry.kind == VALIDATION:
        fields["is_val"] = np.ones(len(found), bool)
    elif any(node.get("advantages") is not None for path in paths for node in path):
        fields["advantages"] = ragged([_spread(path, "advantages") for path in paths])
    hashes = prompt_hashes(tokens, mask)
    named = [(episode.get("group") or {}).get("id") for episode, _, _ in found]
    groups = [group or hashed for group, hashed in zip(named, hashes, strict=True)]
    extra = {IDS_FROM: "group or prompt, and order in the file"}
    return Record(entry.key, fields, ids_in_order(groups), hashes, extra=extra, source=entry.file)


def _paths(episode: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    for trace in episode.get("traces") or ():
        nodes = trace.get("nodes") or []
        if (trace.get("agent") or {}).get("trainable") is False:
            continue
        inner = {node.get("parent") for node in nodes}
        for leaf in range(len(nodes)):
            if leaf not in inner:
                yield trace, _path(nodes, leaf)


def _path(nodes: Sequence[Mapping[str, Any]], leaf: int) -> list[Mapping[str, Any]]:
    """The path from the root to a message; a parent comes before its children."""
    path, place = [nodes[leaf]], leaf
    while (parent := nodes[place].get("parent")) is not None:
        if not isinstance(parent, int) or not 0 <= parent < place:
            raise Malformed("a message before its parent")
        path.append(nodes[parent])
        place = parent
    return path[::-1]


def _joined(path: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [value for node in path for value in node.get(name) or ()]


def _spread(path: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """Values of sampled tokens on all tokens, 0 elsewhere."""
    parts = []
    for node in path:
        mask = np.asarray(node.get("mask") or (), bool)
        part, values = np.zeros(len(mask), np.float32), node.get(name) or ()
        if len(values):
            if len(values) != mask.sum():
                raise Malformed(f"{len(values)} {name} of {mask.sum()} sampled tokens")
            part[mask] = values
        parts.append(part)
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _reward(trace: Mapping[str, Any]) -> float | None:
    known = [each for each in (trace.get("rewards") or {}).values() if each is not None]
    return sum(each["score"] * each.get("weight", 1.0) for each in known) if known else None


def _about(episode: Mapping[str, Any], trace: Mapping[str, Any]) -> dict[str, Any]:
    about = {name: trace[name] for name in _KEPT if name in trace}
    return about | {"episode": episode.get("id"), "env_name": (episode.get("env") or {}).get("id")}
