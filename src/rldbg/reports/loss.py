"""A user's loss on a saved batch, compared with the references."""

from collections.abc import Iterator

from rich.console import RenderableType

from rldbg.replay.loss import LossReport, ModelGradients
from rldbg.reports.findings import to_terminal as findings_to_terminal
from rldbg.reports.tables import Table


def to_lines(report: LossReport) -> Iterator[RenderableType]:
    yield f"{report.rows} rows, {report.tokens} tokens, ranks: {report.ranks}, {report.device}"
    yield to_terminal(report)
    if report.gradients:
        yield from _parameter_norms(report.gradients)
    if report.findings:
        yield findings_to_terminal(report.findings)
    yield report.conclusion()


def _parameter_norms(gradients: ModelGradients) -> Iterator[str]:
    others = ", ".join(
        f"{name} {norm:.6g} (cosine {gradients.cosines[name]:.6f})" for name, norm in gradients.references.items()
    )
    yield f"gradient norm of the parameters: {gradients.norm:.6g}; {others}"
    yield "  largest: " + ", ".join(f"{name} {norm:.3g}" for name, norm in gradients.largest.items())
    apart = gradients.largest_log_prob_difference
    yield f"  the model's log probs are at most {apart:.3g} from the recorded ones"


def to_terminal(report: LossReport) -> Table:
    table = Table("point", "loss", "value", "|d loss/d log_probs|", "difference", "cosine", "verdict", box=None)
    for point in report.points:
        table.add_row(point.name, report.loss, f"{point.loss:.6g}", f"{point.gradient_norm:.6g}", "", "", "")
        for item in point.comparisons:
            table.add_row(
                "",
                item.reference,
                f"{item.loss:.6g}",
                f"{item.gradient_norm:.6g}",
                f"{item.gradient_difference:.3g}",
                f"{item.cosine:.6f}",
                item.verdict if item.verdict != "proportional" else f"{item.factor:.6g} times",
            )
    return table
