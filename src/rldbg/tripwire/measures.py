"""The numbers of one recorded step that are watched, from whatever kinds it has.

What was recorded of the samples counts before what the framework logged; a name of ours means the same in every run.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rldbg.analysis import metrics_by_step
from rldbg.recording import Record, Recording
from rldbg.tripwire.settings import OF_METRICS

_OF_SAMPLES = {
    "reward": "reward/mean",
    "length": "responses/length_mean",
    "truncated": "responses/truncated",
    "mismatch": "rollout/k3",
    "clipped": "update/ratio_outside",
    "equal_groups": "groups/zero_std",
    "duplicates": "responses/duplicates",
    "staleness": "staleness/mean",
}
# Names under which trainers log a measure, the more telling first.
_LOGGED = {
    "reward": ("reward/mean", "critic/rewards/mean", "critic/score/mean", "rewards/mean", "reward", "mean_reward"),
    "length": ("response_length/mean", "completions/mean_length", "mean_response_length", "response_length", "length"),
    "grad_norm": ("grad_norm", "actor/grad_norm", "train/grad_norm", "policy/grad_norm"),
    "entropy": ("entropy", "actor/entropy", "actor/entropy_loss", "policy_entropy", "train/entropy"),
    "kl": ("kl/k3", "actor/ppo_kl", "actor/kl_loss", "approx_kl", "kl", "train/kl"),
    "loss": ("loss", "actor/pg_loss", "actor/loss", "train/loss", "policy_loss"),
    "clipped": ("clip_fraction", "actor/pg_clipfrac", "clip_ratio", "clip_ratio/region_mean"),
    "learning_rate": ("learning_rate", "actor/lr", "lr", "train/learning_rate"),
    "mismatch": ("rollout/k3", "rollout_corr/k3_kl", "training/rollout_probs_diff_mean"),
}
MEASURES = tuple(dict.fromkeys([*_OF_SAMPLES, *_LOGGED]))


class StepMeasures(NamedTuple):
    """A step's measures and everything it logged, by name; and the place within the step that a measure points to."""

    values: dict[str, float]
    places: dict[str, str]
    logged: frozenset[str] = frozenset()
    """Measures of which the step holds nothing but a value that was logged."""


def measure(recording: Recording, step: int, logged: Mapping[str, Any] | None = None) -> StepMeasures:
    """`logged` is the step's line of RUN/metrics.jsonl, where NaN is null."""
    values = {name: _number(value) for name, value in (logged or {}).items() if _is_numeric(value)}
    places: dict[str, str] = {}
    for kind in OF_METRICS:
        values |= _of_metrics(recording, kind, step, places)
    for name, known in _LOGGED.items():
        found = next((each for each in known if each in values), None)
        if found is not None:
            values[name] = values[found]
            if found in places:
                places[name] = places[found]
    of_losses = dict(_of_losses(recording, step, places))
    row = next(iter(metrics_by_step(recording, [step])), {})
    of_samples = {name: row[key] for name, key in _OF_SAMPLES.items() if key in row}
    _longest(recording, step, places)
    has_more = any(entry.kind not in OF_METRICS for entry in recording.entries(step=step))
    recordable = {"loss", "kl", "entropy", *_OF_SAMPLES} if has_more else values.keys()
    only_logged = frozenset(recordable - of_losses.keys() - of_samples.keys())
    if "kl" in values:
        of_losses.pop("kl", None)
    return StepMeasures(values | of_losses | of_samples, places, only_logged)


def _of_metrics(recording: Recording, kind: str, step: int, places: dict[str, str]) -> dict[str, float]:
    """What each rank logged last, averaged over ranks; a value that is not finite counts on whatever rank it is."""
    by_name: dict[str, dict[int, float]] = defaultdict(dict)
    not_finite: dict[str, float] = {}
    for record in _records(recording, kind, step):
        metrics = record.fields.get("metrics")
        for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
            if value is not None and _is_numeric(value):  # None is a value that is missing
                number = by_name[str(name)][record.key.rank] = _number(value)
                if not math.isfinite(number) and name not in not_finite:
                    not_finite[str(name)] = number
                    places[str(name)] = f"rank {record.key.rank}"
    finite = {name: ranks.values() for name, ranks in by_name.items() if name not in not_finite}
    return {name: math.fsum(numbers) / len(numbers) for name, numbers in finite.items()} | not_finite


def logged_by_step(path: Path) -> dict[int, dict[str, Any]]:
    """RUN/metrics.jsonl; the last line of each step counts, and a line cut short does not."""
    rows: dict[int, dict[str, Any]] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return rows
    for line in lines:
        try:
            row = json.loads(line)
            rows[int(row.pop("step"))] = row
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return rows


def _of_losses(recording: Recording, step: int, places: dict[str, str]) -> Iterator[tuple[str, float]]:
    """The loss adds up over micro-batches and ranks; a value that is not finite says where it is."""
    losses: dict[str, list[float]] = defaultdict(list)
    for record in _records(recording, "loss", step):
        for name, field in (("loss", "loss"), ("kl", "kl_loss")):
            value = record.fields.get(field)
            if value is None or np.size(value) != 1:
                continue
            number = float(np.asarray(value, dtype=np.float64).reshape(()))
            losses[name].append(number)
            if not math.isfinite(number):
                places.setdefault(name, f"rank {record.key.rank}, micro-batch {record.key.micro}")
    for name, numbers in losses.items():
        yield name, math.fsum(numbers) if all(map(math.isfinite, numbers)) else math.nan
    total = count = 0.0
    for record in _records(recording, "forward_data", step):
        if {"entropy", "response_mask"} <= record.fields.keys():
            mask = record.array("response_mask") != 0
            total += float(record.array("entropy").astype(np.float64)[mask].sum())
            count += float(mask.sum())
    if count:
        yield "entropy", total / count


def _longest(recording: Recording, step: int, places: dict[str, str]) -> None:
    for kind in ("trajectory", "prepared_trajectories"):
        for record in _records(recording, kind, step):
            rows = record.fields.get("tokens")
            lengths = getattr(rows, "lengths", None)
            if lengths is not None and len(lengths) == len(record.samples) > 0:
                longest = int(np.argmax(lengths))
                places["length"] = f"the longest is sample {record.samples[longest]}"
                return


def _records(recording: Recording, kind: str, step: int) -> Iterator[Record]:
    for entry in recording.entries(kind, step):
        yield recording.read_entry(entry)


def _is_numeric(value: Any) -> bool:
    return value is None or (isinstance(value, int | float | np.number) and not isinstance(value, bool))


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
