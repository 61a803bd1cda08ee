"""What is wrong with a loss, judged by its numbers alone: not finite, blind, beyond the mask, turned around."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from rldbg.core import Finding, Severity
from rldbg.replay.loss.inputs import LossInputs
from rldbg.replay.loss.results import LossComparison, LossReport, Point

if TYPE_CHECKING:
    import torch

_SAME = 1e-3


class _Evaluated(Protocol):
    @property
    def value(self) -> float: ...
    @property
    def gradient(self) -> torch.Tensor | None: ...


def findings_of(evaluated: _Evaluated, inputs: LossInputs, point: Point, of_log_probs: bool) -> list[Finding]:
    """What can be said of a loss without any reference."""
    import torch

    where = f"at the {point.name} log probs"
    found = []
    if not math.isfinite(evaluated.value):
        found.append(_error("loss-not-finite", where, f"the loss is {evaluated.value}"))
    gradient = evaluated.gradient
    if gradient is None:
        if of_log_probs:
            cause = "it is computed without the log probs, from a detached tensor, or under no_grad"
            found.append(_error("loss-without-gradient", where, "the loss has no gradient", cause))
        return found
    if not bool(torch.isfinite(gradient).all()):
        row, column = (int(value) for value in torch.nonzero(~torch.isfinite(gradient))[0])
        place = f"first at sample {inputs.batch.samples[row]}, response token {column}"
        found.append(_error("gradient-not-finite", where, f"the gradient of the log probs is not finite, {place}"))
        return found
    if not bool(gradient.any()):
        cause = "the loss does not depend on the log probs: is it computed from a detached tensor?"
        found.append(_error("gradient-zero", where, "every gradient of the log probs is 0", cause))
    outside = (inputs.mask == 0) & (gradient != 0)
    if bool(outside.any()):
        row, column = (int(value) for value in torch.nonzero(outside)[0])
        place = f"first sample {inputs.batch.samples[row]}, response token {column}"
        said = f"{int(outside.sum())} tokens outside the mask have a gradient, {place}"
        cause = "prompt, tool or padding tokens are trained on: multiply by the mask before the sum"
        found.append(_error("gradient-outside-mask", where, said, cause))
    return found


def against_reference(report: LossReport, inputs: LossInputs, wanted: str | None) -> list[Finding]:
    """What the references add: a loss turned around, a known factor, or not the one that was asked for."""
    found = []
    last = report.points[-1]
    if report.opposite_of:
        said = f"its gradient is the opposite of that of {report.opposite_of[0]}"
        found.append(_error("sign-reversed", report.loss, said, "the loss is maximised: put a minus before it"))
    for item in last.comparisons:
        if item.verdict == "proportional" and (reason := _factor(item, report, inputs)):
            found.append(
                Finding(
                    "loss-scaled", Severity.INFO, report.loss, (f"{item.factor:.6g} times {item.reference}: {reason}",)
                )
            )
    if report.ranks > 1 and not report.equal_to:
        found += _of_ranks(report)
    if wanted is not None and wanted not in report.equal_to:
        other = next(item for item in last.comparisons if item.reference == wanted)
        numbers = f"loss {last.loss:.6g}, {wanted} has {other.loss:.6g}"
        said = f"{numbers}; gradients differ by up to {other.gradient_difference:.3g}, cosine {other.cosine:.6f}"
        found.append(_error(f"differs-from-{wanted}", f"at the {last.name} log probs", said))
    return found


def _factor(item: LossComparison, report: LossReport, inputs: LossInputs) -> str:
    """A number of the batch that explains the factor."""
    rows, width = len(inputs), inputs.batch.response_width
    candidates = {
        "the number of tokens: a sum where the reference takes the mean": float(report.tokens),
        "the number of rows": float(rows),
        "the number of ranks": float(report.ranks),
        "tokens / (rows * response columns): padding is counted in the mean": report.tokens / (rows * width),
        "tokens / rows: the sum is divided by the rows": report.tokens / rows,
    }
    for reason, value in candidates.items():
        if value != 1 and abs(item.factor / value - 1) < _SAME:
            return reason
        if value != 1 and abs(item.factor * value - 1) < _SAME:
            return f"1 over {reason}"
    return ""


def _of_ranks(report: LossReport) -> list[Finding]:
    losses = ", ".join(f"{value:.6g}" for value in report.points[-1].loss_of_ranks)
    return [
        Finding(
            "loss-by-rank",
            Severity.INFO,
            report.loss,
            (f"the ranks have {losses}; put together {report.points[-1].loss:.6g}",),
            cause="means over each rank's own tokens are not the mean over all when ranks have unequal numbers",
            fix=("divide by the number of tokens of all ranks (all_reduce it), or by a constant",),
        )
    ]


def _error(id: str, where: str, evidence: str, cause: str = "") -> Finding:
    return Finding(id, Severity.ERROR, where, (evidence,), cause)
