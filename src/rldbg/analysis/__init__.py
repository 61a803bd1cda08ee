"""check and compare: the first stage, step, rank, sample and token that is wrong, by numbers."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.analysis.checking import CheckReport, check
    from rldbg.analysis.comparison import compare
    from rldbg.analysis.document_report import report_lines
    from rldbg.analysis.explain import nearest_text
    from rldbg.analysis.html import html_report
    from rldbg.analysis.results import COMPARISON_FINDINGS, VERDICTS, Comparison, FieldResult, FirstDifference, Verdict
    from rldbg.analysis.stages import Stage, stage_of
    from rldbg.analysis.tolerances import Tolerance, Tolerances

__all__ = [
    "COMPARISON_FINDINGS",
    "VERDICTS",
    "CheckReport",
    "Comparison",
    "FieldResult",
    "FirstDifference",
    "Stage",
    "Tolerance",
    "Tolerances",
    "Verdict",
    "check",
    "compare",
    "html_report",
    "nearest_text",
    "report_lines",
    "stage_of",
]

_MODULES = {
    "checking": ("CheckReport", "check"),
    "comparison": ("compare",),
    "document_report": ("report_lines",),
    "explain": ("nearest_text",),
    "html": ("html_report",),
    "results": ("COMPARISON_FINDINGS", "VERDICTS", "Comparison", "FieldResult", "FirstDifference", "Verdict"),
    "stages": ("Stage", "stage_of"),
    "tolerances": ("Tolerance", "Tolerances"),
}

__getattr__, __dir__ = lazy_names(__name__, {name: module for module, names in _MODULES.items() for name in names})
