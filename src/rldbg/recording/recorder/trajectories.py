"""Trajectories as rollouts have them, one object per sample, turned into columns; and the hashes of their prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.recording.kinds import KINDS, Shape
from rldbg.recording.records import Ragged, hashes_of_prompts

TRAJECTORY_KINDS = frozenset({"trajectory", "prepared_trajectories"})
_PER_TOKEN = tuple(field.name for field in KINDS["prepared_trajectories"].fields if field.shape is Shape.TOKENS)
_ABSENT = object()


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
    return hashes_of_prompts(tokens, loss_mask)


def _member(item: Any, name: str, default: Any) -> Any:
    return item.get(name, default) if isinstance(item, Mapping) else getattr(item, name, default)
