"""The gap between rollout and trainer: causes with their shares, experiments, and metrics by part."""

from collections.abc import Iterator

from rich.console import RenderableType

from rldbg.mismatch import METRICS, EngineScores, Factor, MismatchReport, ProbeReport
from rldbg.reports.findings import to_terminal as findings_to_terminal
from rldbg.reports.tables import Table, table

_FACTORS_SHOWN = 6
_PARTS_SHOWN = 12
_SAME = 0.99


def to_terminal(report: MismatchReport, probed: ProbeReport | None = None) -> Iterator[RenderableType]:
    numbers = ", ".join(f"{name} {report.metrics[name]:.4g}" for name in METRICS[1:] if name in report.metrics)
    yield f"{'agree' if report.agrees else 'differ'}: {int(report.metrics['tokens'])} tokens, {numbers}"
    for cause in (*report.causes, *((report.unexplained,) if report.unexplained else ())):
        yield f"{cause.share:6.1%}  {cause.id}: {cause.text}"
        yield from (
            f"          {item.where}: rollout {item.rollout:.6g}, trainer {item.trainer:.6g}" for item in cause.proof
        )
    if probed is not None:
        yield from _probe(probed)
    if report.findings:
        yield findings_to_terminal(report.findings)
    for name, rows in report.parts.items():
        yield _metrics(name, dict(list(rows.items())[-_PARTS_SHOWN:]))


def _probe(probed: ProbeReport) -> Iterator[RenderableType]:
    yield (
        f"probe of step {probed.step}: {len(probed.samples)} samples, {probed.tokens} tokens; the trainer's model is "
        f"{probed.rollout_gap:.3g} off the recorded rollout and {probed.trainer_gap:.3g} off the recorded trainer"
    )
    if probed.cause is not None:
        yield f"this change {_reproduces(probed.cause)} the {probed.side}'s log probs: {probed.cause.change}"
    elif max(probed.rollout_gap, probed.trainer_gap) > probed.factors[0].left:
        yield f"no single change reproduces the {probed.side}'s log probs; the nearest:"
    if probed.engine is not None:
        yield from _engine(probed.engine)
    rows = ((item.change, f"{item.left:.3g}") for item in probed.factors[:_FACTORS_SHOWN])
    yield table("changed", f"mean |gap| to the {probed.side} left", rows=rows)


def _engine(asked: EngineScores) -> Iterator[str]:
    rollout = (
        "its scores ignore the temperature"
        if asked.rollout_gap is None
        else f"{asked.rollout_gap:.3g} off the recorded rollout"
    )
    yield (
        f"the engine ({asked.address}) is now {asked.model_gap:.3g} off the trainer's model; {rollout}; "
        f"samples scored together and one by one differ by {asked.batch_variance:.3g}"
    )
    if asked.cause is not None:
        yield f"this change {_reproduces(asked.cause)} the engine's scores: {asked.cause.change}"


def _reproduces(cause: Factor) -> str:
    """Rounding seldom repeats exactly; what else a change leaves is small."""
    partly = cause.likeness and cause.likeness < _SAME
    return f"shifts the tokens in the same way (correlation {cause.likeness:.2f}) as" if partly else "reproduces"


def _metrics(name: str, rows: dict[str, dict[str, float]]) -> Table:
    cells = ((label, *("" if key not in row else f"{row[key]:.4g}" for key in METRICS)) for label, row in rows.items())
    return table(name, *METRICS, rows=cells)
