"""The tour of `rldbg demo`: real runs, real bugs, and the commands that look at them."""

from rldbg.demo.stage import TourStage, Visited
from rldbg.demo.stops import ANSWER, REPORT, STOPS, TourStop, hide_bug

__all__ = ["ANSWER", "REPORT", "STOPS", "TourStage", "TourStop", "Visited", "hide_bug"]
