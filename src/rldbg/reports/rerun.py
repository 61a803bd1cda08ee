"""A re-executed step compared with its recording, stage by stage."""

from rldbg.reports.tables import Table
from rldbg.trainer.rerun import RerunReport, RerunStage


def to_terminal(report: RerunReport) -> Table:
    table = Table("stage", "verdict", "values", "differing", "largest difference", "where", box=None)
    for stage in report.stages:
        row = stage.to_dict()
        table.add_row(
            stage.name,
            stage.verdict.value,
            str(row["values"] or ""),
            str(row["differing"] or ""),
            f"{row['max_abs']:.3g}" if row["max_abs"] else "",
            _where(stage),
        )
    return table


def conclusion(report: RerunReport) -> str:
    first = report.first_difference
    if report.changes:
        effect = f"first changes the {first.name} stage" if first else "changes nothing beyond tolerance"
        return f"with {', '.join(f'{key}={value}' for key, value in report.changes.items())}: {effect}"
    if first:
        return f"first difference: {first.name}"
    return "reproduced" if report.reproduced else "nothing could be compared"


def _where(stage: RerunStage) -> str:
    return stage.note or str(stage.to_dict()["first"])
