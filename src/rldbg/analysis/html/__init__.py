"""The report of a comparison to look at: one HTML file that needs nothing else, online or not."""

from rldbg.analysis.html.report import html_report

__all__ = ["html_report"]
