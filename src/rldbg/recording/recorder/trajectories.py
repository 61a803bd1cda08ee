"""Trajectories as rollouts have them, one object per sample, turned into columns; and the hashes of their prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.core import prompt_hash
from rldbg.recording.kinds import KINDS, Shape
from rldbg.recording.records import Ragged

TRAJECTORY_KINDS = frozenset({"trajectory", "prepared_trajectories"})
_PER_TOKEN = tuple(field.name for field in KINDS["prepared_trajectories"].fields if field.shape is Shape.TOKENS)
_ABSENT = object()
_ROWS_AT_ONCE = 64


def columns(trajectories: Sequence[Any]) -> dict[str, Any]:
    """One list per field from one object per sample: mappings, or objects that may have `extra_fields`."""
    fields: dict[str, Any] = {}
    extras = [dict(_member(item, "extra_fields", {}) or {}) for item in trajectories]
    for name in (*_PER_TOKEN, "reward", "is_val"):
        values = [
            _member(item, name, extra.pop(name, _ABSENT)) for item, extra in zip(trajectories, extras, strict=True)
        ]
        if any(value is not _ABSENT for value in values):
            missing: Any = [] if name in _PER_TOKEN else None
            fields[name] = [missing if value is _ABSENT else value for value in values]
    for item, extra in zip(trajectories, extras, strict=True):
        known = item if isinstance(item, Mapping) else getattr(item, "__dict__", {})
        extra |= {key: value for key, value in known.items() if key not in fields and key != "extra_fields"}
    if any(extras):
        fields["extra_fields"] = extras
    return fields


def prompt_hashes(kind: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The hash of each trajectory's prompt: its tokens before the first one that is trained on."""
    tokens, loss_mask = fields.get("tokens"), fields.get("loss_mask")
    if kind not in TRAJECTORY_KINDS or not isinstance(tokens, Ragged) or not isinstance(loss_mask, Ragged):
        return ()
    if not np.array_equal(tokens.offsets, loss_mask.offsets):
        return ()
    ids: Any = tokens.values
    if not isinstance(ids, np.ndarray):  # a dtype that numpy does not have holds no token ids
        return ()
    starts, ends = tokens.offsets[:-1], tokens.offsets[1:]
    trained = np.append(np.flatnonzero(np.asarray(loss_mask.values)), len(loss_mask.values))
    prompt_ends = np.minimum(trained[np.searchsorted(trained, starts)], ends)
    hashes: list[str] = []
    known: dict[bytes, str] = {}  # the samples of a group share their prompt
    for first in range(0, len(starts), _ROWS_AT_ONCE):
        part = slice(first, first + _ROWS_AT_ONCE)
        offset = int(starts[first])
        wide = ids[offset : int(ends[part][-1])].astype("<i8", copy=False)
        for start, end in zip(starts[part].tolist(), prompt_ends[part].tolist(), strict=True):
            prompt = wide[start - offset : end - offset].tobytes()
            if prompt not in known:
                known[prompt] = prompt_hash(prompt)
            hashes.append(known[prompt])
    return tuple(hashes)


def _member(item: Any, name: str, default: Any) -> Any:
    return item.get(name, default) if isinstance(item, Mapping) else getattr(item, name, default)
