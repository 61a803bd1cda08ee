"""One sample for the token view: what `rldbg show --sample --json` says, and what follows from it for each token."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.recording import Sample, TokenColumns
from rldbg.reports.recording import sample_to_json
from rldbg.ui.opened_run import OpenedRun
from rldbg.ui.turns import parts_of

_LONG_TEXT = 4000
_LONG_TOKEN = 400
# An odd token is this many median distances from the median, and not just the largest of a smooth tail.
_ODD_DISTANCES = 12.0
_MAX_ODD = 2000


def sample_view(run: OpenedRun, sample_id: SampleId, step: int | None) -> dict[str, Any]:
    """Everything about one sample; raises UsageError or IncompleteDataError if it does not exist."""
    with run.lock:
        return _view_of(run, run.recording.sample(sample_id, step))


def sample_views(run: OpenedRun, step: int, ids: Sequence[SampleId]) -> list[dict[str, Any]]:
    """The same for several samples of one step; their records are read once."""
    with run.lock:
        found = {sample.id: sample for sample in run.recording.samples_at(step, ids)}
        return [_view_of(run, found[id]) for id in ids if id in found]


def _view_of(run: OpenedRun, sample: Sample) -> dict[str, Any]:
    columns = TokenColumns(sample)
    texts, why_no_text = run.texts_of(columns.tokens.tolist())
    return token_view(sample, columns, texts, run.clip_limits()) | {"no_text": why_no_text}


def token_view(
    sample: Sample, columns: TokenColumns, texts: list[str] | None, clip: tuple[float, float] | None
) -> dict[str, Any]:
    """The document of the token view; pure, for any sample."""
    document = sample_to_json(sample, columns, texts)
    every = columns.columns | derived(columns.columns, clip) | routing_agreement(sample, len(columns.tokens))
    document["columns"] = {name: _known(values) for name, values in every.items()}
    document["odd"] = {name: odd_tokens(values, columns.trained) for name, values in every.items()}
    document["parts"] = [part.to_dict() for part in parts_of(columns.trained, len(columns.tokens), texts)]
    document["values"] = {name: _clipped(value, _LONG_TEXT) for name, value in document["values"].items()}
    document["unaligned"] = {name: len(values) for name, values in columns.unaligned.items()}
    document["clip"] = None if clip is None else list(clip)
    if texts is not None:
        document["text"] = [_clipped(text, _LONG_TOKEN) for text in texts]
    return document


def _known(values: np.ndarray) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def derived(columns: Mapping[str, np.ndarray], clip: tuple[float, float] | None) -> dict[str, np.ndarray]:
    """Quantities that follow from recorded ones: trainer minus rollout, the update's ratio, and what is clipped."""
    found: dict[str, np.ndarray] = {}
    rollout, old = columns.get("logprobs"), columns.get("old_log_probs")
    now = columns.get("log_probs")
    trainer = old if old is not None else now
    with np.errstate(invalid="ignore", over="ignore"):
        if rollout is not None and trainer is not None:
            found["trainer - rollout"] = trainer - rollout
        ratio = columns.get("prob_ratio")
        if ratio is None and now is not None and (old is not None or rollout is not None):
            ratio = found["ratio"] = np.exp(now - (old if old is not None else rollout))
        advantages = columns.get("advantages")
        if ratio is not None and clip is not None:
            found["clipped"] = np.where(np.isnan(ratio), np.nan, is_clipped(ratio, advantages, clip).astype(np.float64))
    return found


def is_clipped(ratio: np.ndarray, advantages: np.ndarray | None, clip: tuple[float, float]) -> np.ndarray:
    """Where the loss is clipped: only on the side to which the advantage pushes, where advantages are known."""
    high, low = ratio > 1 + clip[1], ratio < 1 - clip[0]
    if advantages is not None:
        high, low = high & (advantages > 0), low & (advantages < 0)
    return np.asarray(high | low)


def routing_agreement(sample: Sample, length: int) -> dict[str, np.ndarray]:
    """The share of layers in which engine and trainer chose the same experts for a token, where both are recorded."""
    found: dict[str, np.ndarray] = {}
    for row in sample.rows:  # later passes of a step route by other weights
        if "experts" in row.fields and (row.key.epoch, row.key.mini_batch) == (0, 0):
            found.setdefault(row.key.kind, np.asarray(row.fields["experts"]))
    if not {"rollout_routing", "routing"} <= found.keys():
        return {}
    from rldbg.analysis import agreement_by_token

    shares = agreement_by_token(found["rollout_routing"], found["routing"])[:length]
    column = np.full(length, np.nan)
    column[: len(shares)] = shares
    return {"routing agreement": column}


def odd_tokens(values: np.ndarray, trained: np.ndarray | None) -> list[int]:
    """Positions of trained tokens whose value is not finite although its neighbours' are, or far from all others."""
    chosen = np.flatnonzero(trained) if trained is not None and trained.any() else np.arange(len(values))
    numbers = values[chosen]
    if not len(numbers) or np.isnan(numbers).all():
        return []
    odd = ~np.isfinite(numbers)
    finite = numbers[~odd]
    if finite.size > 8:
        middle = np.median(finite)
        distance = np.median(np.abs(finite - middle))
        # Where more than half of the values are equal, the median distance is 0: any other value stands out.
        odd |= np.abs(numbers - middle) > max(_ODD_DISTANCES * distance, 1e-6 + 1e-3 * abs(middle))
        if odd.mean() > 0.25:
            odd = ~np.isfinite(numbers)
    return [int(place) for place in chosen[odd][:_MAX_ODD]]


def _clipped(value: Any, limit: int) -> Any:
    """Long texts are truncated, with their length."""
    if isinstance(value, str):
        return value if len(value) <= limit else f"{value[:limit]}… ({len(value):,} characters)"
    if isinstance(value, list | tuple | Mapping):
        text = str(value)
        return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"
    return value


def group_view(run: OpenedRun, group: str, step: int) -> dict[str, Any]:
    """The samples of one prompt at one step, side by side: reward, advantage, length, and what the model wrote."""
    table = run.table()
    with run.lock:
        ids: dict[SampleId, None] = {}
        if table.count:
            chosen = np.flatnonzero((table.columns["group"] == group) & (table.columns["step"] == step))
            ids = dict.fromkeys(SampleId(group, int(number)) for number in table.columns["run"][chosen])
    members = [group_member(view) for view in sample_views(run, step, list(ids))]
    return {"group": group, "step": step, "members": members}


def group_member(view: dict[str, Any]) -> dict[str, Any]:
    """What the page of a group shows of one sample."""
    trained = view["trained"] or []
    start = trained.index(True) if True in trained else len(view["tokens"])
    shown = view["text"] if view["text"] is not None else [f"{token} " for token in view["tokens"]]
    advantages = view["columns"].get("advantages") or []
    known = [
        value
        for value, is_trained in zip(advantages, trained, strict=False)
        if is_trained and value is not None and math.isfinite(value)
    ]
    return {
        "sample": view["sample"],
        "values": view["values"],
        "tokens": len(view["tokens"]),
        "trained": sum(trained),
        "advantage": float(np.mean(known)) if known else None,
        "prompt": _clipped("".join(shown[:start]), _LONG_TEXT),
        "response": _clipped("".join(shown[start:]), _LONG_TEXT),
    }
