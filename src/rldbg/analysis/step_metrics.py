"""Training metrics per step, from any recording: how much engine and trainer differ, how stale the data is, how much of
it has a learning signal. Metrics whose inputs were not recorded are omitted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from rldbg.algorithms import effective_sample_size
from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens, read_tokens
from rldbg.core import IncompleteDataError, PrerequisiteError, UsageError
from rldbg.recording import Recording

MetricRow = dict[str, float]
_TAILS = (0.5, 2.0)


def metrics_by_step(recording: Recording, steps: Iterable[int] | None = None) -> list[MetricRow]:
    """One row per step; keys are `step` and the metrics known there, none where a file of the step is damaged."""
    side = Side(recording, "A")
    chosen = sorted(side.steps() if steps is None else set(steps) & side.steps())
    rows: list[MetricRow] = []
    for step in chosen:
        row: MetricRow = {"step": float(step)}
        # `check` names the file; the other steps have their metrics all the same.
        with suppress(IncompleteDataError):
            row |= dict(_of_step(side, step))
        rows.append(row)
    return rows


def _of_step(side: Side, step: int) -> Iterator[tuple[str, float]]:
    samples = list(read_tokens(side, step).values())
    yield from _mismatch(samples)
    yield from _ratios(side, step)
    yield from _groups(samples)
    yield from _responses(samples)
    yield from _staleness(side, step)


def _mismatch(samples: Sequence[SampleTokens]) -> Iterator[tuple[str, float]]:
    """The engine's log probs against the trainer's, over trained tokens."""
    rows = [found for sample in samples if (found := sample.of_rollout_and_trainer()) is not None and found[0].size]
    if not rows:
        return
    rollout, trainer = (np.concatenate([row[n] for row in rows]).astype(np.float64) for n in (0, 1))
    finite = np.isfinite(rollout) & np.isfinite(trainer)
    log_ratio = (trainer - rollout)[finite]
    if not log_ratio.size:
        return
    ratio = np.exp(log_ratio)
    yield "rollout/k1", float(-log_ratio.mean())
    yield "rollout/k3", float((np.expm1(log_ratio) - log_ratio).mean())
    yield "rollout/abs_diff_mean", float(np.abs(log_ratio).mean())
    yield "rollout/abs_diff_max", float(np.abs(log_ratio).max())
    yield "rollout/token_mult_prob_error", float(np.exp(np.abs(log_ratio)).mean())
    yield "rollout/ratio_min", float(ratio.min())
    yield "rollout/ratio_max", float(ratio.max())
    yield "rollout/ratio_outside", float(((ratio < _TAILS[0]) | (ratio > _TAILS[1])).mean())
    yield "rollout/ess", effective_sample_size(ratio)
    per_sequence = [(float(row[0].mean()), float(row[1].mean())) for row in rows]
    yield "rollout/ppl_ratio", float(np.mean([np.exp(engine - own) for engine, own in per_sequence]))


def _ratios(side: Side, step: int) -> Iterator[tuple[str, float]]:
    """The importance ratio of the update itself, over all its passes."""
    parts = []
    for record in side.records("is_loss_debug", step):
        if {"prob_ratio", "effective_valid"} <= record.fields.keys():
            parts.append(record.array("prob_ratio")[record.array("effective_valid") != 0].astype(np.float64))
    ratio = np.concatenate(parts) if parts else np.empty(0)
    if ratio.size:
        yield "update/ratio_min", float(ratio.min())
        yield "update/ratio_max", float(ratio.max())
        yield "update/ratio_outside", float(((ratio < _TAILS[0]) | (ratio > _TAILS[1])).mean())
        yield "update/ess", effective_sample_size(ratio)


def _groups(samples: Sequence[SampleTokens]) -> Iterator[tuple[str, float]]:
    rewards: dict[str, list[float]] = defaultdict(list)
    responses: dict[str, list[bytes]] = defaultdict(list)
    for sample in samples:
        if sample.reward is not None:
            rewards[sample.sample.group_id].append(sample.reward)
        tokens = np.asarray(sample.tokens[sample.prompt_length :], dtype="<i8")
        responses[sample.sample.group_id].append(tokens.tobytes())
    if rewards:
        every = np.concatenate([np.asarray(group) for group in rewards.values()])
        yield "reward/mean", float(every.mean())
        yield "reward/std", float(every.std())
    several = [group for group in rewards.values() if len(group) > 1]
    if several:
        yield "groups/zero_std", float(np.mean([len(set(group)) == 1 for group in several]))
    if responses:
        copies = sum(len(group) - len(set(group)) for group in responses.values())
        yield "responses/duplicates", copies / sum(map(len, responses.values()))


def _responses(samples: Sequence[SampleTokens]) -> Iterator[tuple[str, float]]:
    """Lengths; a response is truncated when it does not end with the token that ends most responses."""
    trained = [np.flatnonzero(sample.loss_mask) for sample in samples]
    ends = [int(sample.tokens[places[-1]]) for sample, places in zip(samples, trained, strict=True) if places.size]
    lengths = [len(sample.tokens) - sample.prompt_length for sample in samples]
    if not ends:
        return
    yield "responses/length_mean", float(np.mean(lengths))
    yield "responses/length_max", float(max(lengths))
    usual, count = Counter(ends).most_common(1)[0]
    if count > len(ends) // 2:
        yield "responses/truncated", float(np.mean([end != usual for end in ends]))


def _staleness(side: Side, step: int) -> Iterator[tuple[str, float]]:
    lags = []
    for kind in ("trajectory", "prepared_trajectories"):
        for record in side.records(kind, step):
            if "policy_versions" in record.fields and record.policy_version is not None:
                versions = record.array("policy_versions")
                lags.append(record.policy_version - versions[versions >= 0])
    every = np.concatenate(lags) if lags else np.empty(0)
    if every.size:
        yield "staleness/mean", float(every.mean())
        yield "staleness/max", float(every.max())


def metric_names(rows: Sequence[MetricRow]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row if name != "step"))


def export_metrics(rows: Sequence[MetricRow], target: Path) -> None:
    """Writes the rows to a .parquet file, or as TensorBoard events into a folder."""
    if target.suffix == ".parquet":
        _write_parquet(rows, target)
    elif target.suffix:
        raise UsageError(f"cannot export metrics to {target}", "give a .parquet file, or a folder for TensorBoard")
    else:
        _write_tensorboard(rows, target)


def _write_parquet(rows: Sequence[MetricRow], target: Path) -> None:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise PrerequisiteError("parquet needs pyarrow", "pip install 'rldbg[parquet]'") from error
    columns = {"step": [int(row["step"]) for row in rows]}
    table = arrow.table(columns | {name: [row.get(name) for row in rows] for name in metric_names(rows)})
    target.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, target)


def _write_tensorboard(rows: Sequence[MetricRow], target: Path) -> None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise PrerequisiteError("TensorBoard events need torch and tensorboard", "pip install tensorboard") from error
    writer = SummaryWriter(str(target))
    for row in rows:
        for name, value in row.items():
            if name != "step":
                writer.add_scalar(name, value, int(row["step"]))
    writer.close()
