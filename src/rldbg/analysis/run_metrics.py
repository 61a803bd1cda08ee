"""Metrics that two runs logged (RUN/metrics.jsonl): the first step at which they diverge.

It covers every step, also those that were not recorded. It shows when runs diverge, not why, so it does not affect the
verdict and is not a warning: accumulated rounding makes two runs diverge without a fault, too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rldbg.analysis.leaves import compare_leaf, is_number, is_time
from rldbg.analysis.results import Comparison
from rldbg.analysis.side import Side
from rldbg.analysis.tolerances import Tolerance
from rldbg.core import Finding, Severity

# Reported numbers are means over a batch: rounding alone moves them by far less than this in one step.
_TOLERANCE = Tolerance(atol=1e-6, rtol=1e-3)
# In causal order: earlier ones can change later ones.
_CAUSES = ("reward", "success", "length", "advantage", "kl", "ratio", "clip", "entropy", "loss", "grad")
_NAMED = 6

MetricsByStep = Mapping[int, Mapping[str, Any]]


def metrics_findings(comparison: Comparison, a: Side, b: Side, steps: Collection[int] | None) -> list[Finding]:
    """Empty when either recording does not belong to a run with metrics, or none diverge; `steps` limits them."""
    if a.recording.run is None or b.recording.run is None:
        return []
    findings: list[Finding] = []
    left = _read(a.recording.run.metrics_path, 0, findings)
    right = _read(b.recording.run.metrics_path, comparison.shift, findings)
    shared = sorted(step for step in left.keys() & right.keys() if steps is None or step in steps)
    for step in shared:
        if parting := _parting(left[step], right[step]):
            rest = _at_the_end(parting[0], shared[-1], left, right) if shared[-1] > step else ()
            findings.append(_finding(comparison, step, parting, (*_shown(parting, left[step], right[step]), *rest)))
            break
    return findings


def reported_metrics(path: Path) -> dict[int, dict[str, Any]]:
    """What the trainer wrote per step; lines that are not metrics are left out."""
    return _read(path, 0, [])


def _read(path: Path, shift: int, findings: list[Finding]) -> dict[int, dict[str, Any]]:
    """The last line of each step counts: a resumed run writes some of them again."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    rows: dict[int, dict[str, Any]] = {}
    unread = 0
    for line in lines:
        try:
            row = json.loads(line)
            rows[int(row.pop("step")) + shift] = row
        except (ValueError, TypeError, KeyError, AttributeError):
            unread += 1
    if unread:
        evidence = f"{unread} of {len(lines)} lines are not metrics of a step"
        findings.append(Finding("metrics-unreadable", Severity.WARNING, str(path), (evidence,), "the run was killed"))
    return rows


def _parting(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Metrics of both that differ, causes first."""
    names = [
        name for name in a if name in b and not is_time(name) and compare_leaf(a[name], b[name], _TOLERANCE).beyond
    ]
    return sorted(names, key=_causal_place)


def _causal_place(name: str) -> int:
    return next((place for place, word in enumerate(_CAUSES) if word in name.lower()), len(_CAUSES))


def _shown(names: list[str], a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    lines = [f"{name}: A {_text(a[name])}, B {_text(b[name])}" for name in names[:_NAMED]]
    return (*lines, *([f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []))


def _at_the_end(name: str, last: int, a: MetricsByStep, b: MetricsByStep) -> tuple[str, ...]:
    if name not in a[last] or name not in b[last]:
        return ()
    return (f"at step {last}, the last of both, {name}: A {_text(a[last][name])}, B {_text(b[last][name])}",)


def _text(value: Any) -> str:
    """A value as text; NaN is written as null."""
    return "NaN" if value is None else f"{value:.6g}" if is_number(value) else str(value)


def _finding(comparison: Comparison, step: int, names: list[str], evidence: tuple[str, ...]) -> Finding:
    where = f"{names[0]}, step {step}"
    first = comparison.first_difference
    if first is not None and first.step <= step:
        cause = f"the recordings differ from step {first.step} on ({first.stage}), and these metrics show it"
        return Finding("metrics-diverge", Severity.INFO, where, evidence, cause)
    if step in comparison.steps:
        cause = "what was recorded of this step agrees: something not recorded differs, or rounding accumulated"
        fix: tuple[str, ...] = ("record more kinds on both sides (dump_options), from this step on",)
    else:
        cause = "nothing recorded before this step differs, and this step was not recorded on both sides"
        fix = (f"record step {step} on both sides and compare again with --step {step}",)
    return Finding("metrics-diverge", Severity.INFO, where, evidence, cause, fix)
