"""Checks on gradients and parameters: what the ranks share, and what an update changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from rldbg.analysis.checks.base import Check, NotApplicable, StepView, Violation
from rldbg.analysis.measure import same_bytes
from rldbg.recording import Record, part_held

_STILL = 1e-6


def _parameters(view: StepView, kind: str) -> dict[str, list[Record]]:
    by_name: dict[str, list[Record]] = defaultdict(list)
    for record in view.side.records(kind, view.step):
        by_name[str(record.fields.get("param_name", ""))].append(record)
    return by_name


def _replicas_agree(view: StepView) -> Iterable[Violation]:
    seen = False
    replicas: dict[tuple[Any, ...], dict[int, Record]] = defaultdict(dict)
    for name, records in _parameters(view, "param").items():
        for record in records:
            if (part := part_held(record)) is not None:
                replicas[name, *part][record.key.rank] = record
    for (name, *_), last in replicas.items():
        if len(last) < 2:
            continue
        seen = True
        first_rank = min(last)
        for rank, record in last.items():
            if not _same_parameter(last[first_rank], record):
                yield Violation(
                    f"step {view.step} rank {rank} {name}",
                    (f"differs from rank {first_rank}: {_gap(last[first_rank], record)}",),
                )
    if not seen:
        raise NotApplicable("no parameter recorded by more than one rank")


def _gradients_agree(view: StepView) -> Iterable[Violation]:
    """After the reduction every data-parallel rank has the same gradient."""
    seen = False
    groups: dict[tuple[Any, ...], dict[int, Record]] = defaultdict(dict)
    for record in view.side.records("gradient", view.step):
        part = part_held(record)
        if "gradient" in record.fields and part is not None:
            name = str(record.fields.get("param_name", ""))
            groups[name, record.key.epoch, record.key.mini_batch, *part][record.key.rank] = record
    for (name, epoch, mini_batch, *_), ranks in groups.items():
        first, *others = (ranks[rank] for rank in sorted(ranks))
        seen = seen or bool(others)
        for other in others:
            if not same_bytes(first.array("gradient"), other.array("gradient")):
                where = f"step {view.step} epoch {epoch} mini-batch {mini_batch} rank {other.key.rank} {name}"
                yield Violation(where, (f"its gradient differs from that of rank {first.key.rank}",))
    if not seen:
        raise NotApplicable("no gradient recorded by more than one rank")


def _policy_leaves(view: StepView) -> Iterable[Violation]:
    """Over several optimizer steps the policy moves away from the old policy and from the reference."""
    for kind, other, title in (
        (
            "is_loss_debug",
            "old_log_probs",
            "old log probs are those of the same pass in every pass: the ratio is always 1",
        ),
        (
            "forward_data",
            "ref_log_probs",
            "the reference's log probs are the policy's in every pass: the reference changes too",
        ),
    ):
        gaps, updates = [], set()
        for record in view.side.records(kind, view.step):
            if "log_probs" in record.fields and other in record.fields:
                updates.add((record.key.epoch, record.key.mini_batch))
                mask = record.array("effective_valid" if kind == "is_loss_debug" else "response_mask") != 0
                gaps.append(np.abs(record.array("log_probs") - record.array(other))[mask].max(initial=0.0))
        if len(updates) > 1 and max(gaps) <= _STILL and _moved(view):
            yield Violation(f"step {view.step}", (title,))


def _moved(view: StepView) -> bool:
    """Whether the log probs of a sample change from epoch to epoch."""
    first: dict[tuple[int, int, int], np.ndarray] = {}
    for record in view.side.records("forward_data", view.step):
        key, values = record.key, record.array("log_probs")
        known = first.setdefault((key.rank, key.micro, key.mini_batch), values)
        if known.shape == values.shape and np.abs(known - values).max(initial=0.0) > 10 * _STILL:
            return True
    return False


def _same_parameter(a: Record, b: Record) -> bool:
    if "hash" in a.fields and "hash" in b.fields:
        return bool(a.fields["hash"] == b.fields["hash"])
    return same_bytes(a.array("param"), b.array("param"))


def _gap(a: Record, b: Record) -> str:
    if "param" in a.fields and "param" in b.fields and a.array("param").shape == b.array("param").shape:
        return f"max abs {float(np.abs(a.array('param') - b.array('param')).max()):.4g}"
    return "hashes differ"


def _parameters_move(view: StepView) -> Iterable[Violation]:
    """Compared with the step before; a parameter that never changes is frozen or gets no gradient."""
    earlier = [step for step in view.side.steps("param") if step < view.step]
    if not earlier:
        raise NotApplicable("no parameters of an earlier step")
    before = _parameters(StepView(view.side, max(earlier)), "param")
    still = []
    now = _parameters(view, "param")
    for name, records in now.items():
        if name in before and _same_parameter(before[name][-1], records[-1]):
            still.append(name)
    if still and len(still) == len(now):
        yield Violation(f"step {view.step}", (f"none of {len(now)} parameters changed since step {max(earlier)}",))


def _gradients_sound(view: StepView) -> Iterable[Violation]:
    gradients = _parameters(view, "gradient")
    if not gradients:
        raise NotApplicable("no gradients")
    for name, records in gradients.items():
        for record in records:
            norm: Any = record.fields.get("norm")
            if norm is not None and not np.isfinite(norm):
                yield Violation(f"step {view.step} rank {record.key.rank} {name}", (f"gradient norm is {norm}",))


CHECKS = (
    Check(
        "gradients-sound",
        "gradients are finite",
        "a NaN gradient destroys the parameters at the next optimizer step",
        ("find the first NaN upstream in the losses and log probs of this step",),
        _gradients_sound,
    ),
    Check(
        "gradients-agree",
        "data-parallel ranks use the same gradient",
        "the gradients of the ranks were not reduced, so each rank trains a different model",
        ("check that every rank takes part in the all-reduce before the optimizer step",),
        _gradients_agree,
    ),
    Check(
        "policy-leaves-old-and-reference",
        "the policy moves away from the old policy and the reference",
        "old log probs or the reference follow the policy, so clip or KL have no effect",
        ("compute old log probs once, before the first update, and keep the reference's own copy of the weights",),
        _policy_leaves,
    ),
    Check(
        "replicas-agree",
        "data-parallel replicas hold the same parameters",
        "replicas drift apart when one misses a gradient reduction, skips a step, or started from different weights",
        ("check that every rank takes part in the all-reduce and loads the same checkpoint",),
        _replicas_agree,
    ),
    Check(
        "parameters-move",
        "parameters change from step to step",
        "no recorded parameter changed: learning rate 0, zero advantages, or the optimizer holds different parameters",
        ("check the learning rate, the advantages, and which parameters the optimizer was given",),
        _parameters_move,
    ),
)
