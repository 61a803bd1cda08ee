"""A user's loss on a saved batch, beside the references."""

from html import escape

from rich.table import Table

from rldbg.replay.loss import LossReport


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


def to_html(report: LossReport) -> str:
    return f"<p>{escape(report.conclusion())}</p>"
