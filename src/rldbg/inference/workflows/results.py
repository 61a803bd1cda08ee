"""What workflows return, turned into rows: tensors as AReaL's workflows give them, and plain mappings.

Anything else is an error that says what was returned and what is expected; nothing is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.core import SampleId, UsageError
from rldbg.inference.workflows.completions import Trained
from rldbg.inference.workflows.outcome import EpisodeOutcome

_TOKENS, _MASK, _REWARDS = ("input_ids", "tokens"), ("loss_mask",), ("rewards", "reward")
_VERSIONS = ("versions", "policy_versions")
_KNOWN = frozenset({*_TOKENS, *_MASK, *_REWARDS, *_VERSIONS, "logprobs", "attention_mask"})
_EXPECTED = "return input_ids, loss_mask, logprobs, versions and rewards, as [T] or [B, T] (see docs/rollout.md)"


class BadResult(UsageError):
    """A workflow returned something that is not a trajectory."""

    kind = "result"


def number(value: Any, what: str = "reward") -> float:
    """A finite number from a Python, numpy or torch one; anything else is an error."""
    try:
        found = float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        raise BadResult(f"the {what} is {value!r:.120}, not a number", "return one number") from None
    if not math.isfinite(found):
        raise BadResult(f"the {what} is {found}", f"find out why: a {what} must be finite")
    return found


def rows_of_tensors(result: Any) -> list[Trained]:
    """One row for each sequence of a mapping of tensors, arrays or lists; padding (attention_mask 0) is cut off."""
    if not (isinstance(result, Mapping) or hasattr(result, "items")):
        raise BadResult(f"the workflow returned a {type(result).__name__}: {result!r:.200}", _EXPECTED)
    arrays = {str(name): _array(value, str(name)) for name, value in result.items()}
    ids = _first(arrays, _TOKENS)
    if ids is None:
        raise BadResult(f"the result has no input_ids, but {', '.join(arrays) or 'nothing'}", _EXPECTED)
    if ids.ndim not in (1, 2) or ids.size == 0 or ids.dtype.kind not in "iu" or (ids < 0).any():
        raise BadResult(f"input_ids is {ids.dtype} {list(ids.shape)}, not token ids [T] or [B, T]", _EXPECTED)
    shape = ids.shape if ids.ndim == 2 else (1, ids.size)
    keep = _per_token(arrays, ("attention_mask",), shape, np.ones(shape)).astype(bool)
    if not keep.any(axis=1).all():
        raise BadResult("a sequence has no token under its attention_mask", _EXPECTED)
    mask = _per_token(arrays, _MASK, shape, None)
    if not np.isin(mask[keep], (0, 1)).all():
        raise BadResult("loss_mask has values other than 0 and 1", _EXPECTED)
    columns = {
        "tokens": ids.reshape(shape).astype(np.int32),
        "loss_mask": mask.astype(np.int32),
        "logprobs": _per_token(arrays, ("logprobs",), shape, np.where(mask != 0, np.nan, 0.0)).astype(np.float32),
        "versions": _per_token(arrays, _VERSIONS, shape, np.full(shape, -1)).astype(np.int32),
    }
    rewards, extra = _rewards(arrays, shape[0]), _extras(arrays, shape)
    return [
        Trained(
            **{name: values[row][keep[row]] for name, values in columns.items()},
            reward=rewards[row],
            extra={
                name: value[row][keep[row]] if value.shape == shape else value[row] for name, value in extra.items()
            },
        )
        for row in range(shape[0])
    ]


def rows_of_completions(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    *,
    rewards: Sequence[float],
    logprobs: Sequence[Any] | None = None,
    masks: Sequence[Any] | None = None,
    version: int = 0,
) -> list[Trained]:
    """Rows from prompts and completions as token ids, one of each per row; a mask covers the completion."""
    rows = []
    for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        asked, drawn = list(map(int, prompt)), list(map(int, completion))
        mask = np.ones(len(drawn), np.int32) if masks is None else np.asarray(masks[place], np.int32)
        values = np.full(len(drawn), np.nan) if logprobs is None else np.asarray(logprobs[place], np.float32)
        # TRL's server sends the log probs of the k likeliest tokens; the first one is the token's own.
        values = values[:, 0] if values.ndim == 2 else values
        if len(mask) != len(drawn) or len(values) != len(drawn):
            raise BadResult(
                f"completion {place} has {len(drawn)} tokens, {len(values)} logprobs and {len(mask)} mask values",
                "return one of each for every token of a completion",
            )
        before = len(asked)
        rows.append(
            Trained(
                np.asarray(asked + drawn, np.int32),
                np.concatenate([np.zeros(before, np.int32), mask]),
                np.concatenate([np.zeros(before, np.float32), values]).astype(np.float32),
                np.concatenate([np.full(before, -1), np.where(mask != 0, version, -1)]).astype(np.int32),
                rewards[place],
            )
        )
    return rows


def _array(value: Any, name: str) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) in ("torch.bfloat16", "torch.float16") else value
        return np.asarray(value)
    try:
        array = np.asarray(value)
    except ValueError:
        raise BadResult(f"{name} has rows of different lengths", "pad them, and give an attention_mask") from None
    return array


def _first(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _per_token(
    arrays: Mapping[str, np.ndarray], names: Sequence[str], shape: tuple[int, ...], default: np.ndarray | None
) -> np.ndarray:
    found = _first(arrays, names)
    if found is None:
        if default is None:
            raise BadResult(f"the result has no {names[0]}, but {', '.join(arrays)}", _EXPECTED)
        return default
    if found.size != math.prod(shape) or found.dtype.kind not in "biuf":
        raise BadResult(
            f"{names[0]} is {found.dtype} {list(found.shape)}, but input_ids is {list(shape)}",
            "give one value for every token",
        )
    return found.reshape(shape)


def _rewards(arrays: Mapping[str, np.ndarray], rows: int) -> list[float]:
    found = _first(arrays, _REWARDS)
    if found is None:
        raise BadResult(f"the result has no rewards, but {', '.join(arrays)}", _EXPECTED)
    if found.size != rows:
        raise BadResult(f"rewards has {found.size} values for {rows} sequences", _EXPECTED)
    return [number(value) for value in found.reshape(-1)]


def _extras(arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Further numbers, one per token or one per row; what has another shape cannot be kept in a padded batch."""
    extra = {}
    for name, array in arrays.items():
        if name in _KNOWN or array.dtype.kind not in "biuf":
            continue
        if array.size == math.prod(shape):
            extra[name] = array.reshape(shape)
        elif array.size == shape[0]:
            extra[name] = array.reshape(shape[0])
    return extra


def samples_of(outcomes: Sequence[EpisodeOutcome]) -> list[tuple[SampleId, Trained]]:
    """Each row with its id. Where episodes give several rows, run ids are spread: run * most rows + row."""
    width = max((len(outcome.rows) for outcome in outcomes), default=1) or 1
    return [
        (SampleId(outcome.spec.row.group_id, outcome.spec.run * width + place), row)
        for outcome in outcomes
        for place, row in enumerate(outcome.rows)
    ]


def padded_batch(rows: Sequence[Trained]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The tensors of a batch by AReaL's names, padded on the right; and the names of what could not be kept."""
    lengths = np.array([len(row) for row in rows])
    tensors: dict[str, np.ndarray] = {
        "input_ids": _padded([row.tokens for row in rows], 0, np.int32),
        "loss_mask": _padded([row.loss_mask for row in rows], 0, np.int32),
        "logprobs": _padded([row.logprobs for row in rows], 0.0, np.float32),
        "versions": _padded([row.versions for row in rows], -1, np.int32),
        "attention_mask": np.arange(lengths.max())[None, :] < lengths[:, None],
        "rewards": np.array([row.reward for row in rows], np.float32),
    }
    dropped = []
    for name in dict.fromkeys(name for row in rows for name in row.extra):
        values = [row.extra.get(name) for row in rows]
        column = None if name in tensors else _extra(values, lengths)
        if column is None:
            dropped.append(name)
        else:
            tensors[name] = column
    return tensors, dropped


def _padded(rows: Sequence[np.ndarray], fill: float, dtype: Any) -> np.ndarray:
    padded = np.full((len(rows), max(len(row) for row in rows)), fill, dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded


def _extra(values: Sequence[Any], lengths: np.ndarray) -> np.ndarray | None:
    """A workflow's own column, if every row has it in the same form: one value, or one per token."""
    arrays = [np.asarray(value) for value in values if value is not None]
    if len(arrays) != len(lengths):
        return None
    if all(array.ndim == 0 for array in arrays):
        return np.stack(arrays)
    if all(array.shape == (length,) for array, length in zip(arrays, lengths, strict=True)):
        return _padded(arrays, 0, np.result_type(*{array.dtype for array in arrays}))
    return None
