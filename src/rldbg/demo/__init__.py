"""The tour of `rldbg demo`: real runs, real bugs, and the commands that look at them."""

from rldbg.demo.stage import Stage, Visited
from rldbg.demo.stops import ANSWER, REPORT, STOPS, Stop, hide_bug

__all__ = ["ANSWER", "REPORT", "STOPS", "Stage", "Stop", "Visited", "hide_bug"]
