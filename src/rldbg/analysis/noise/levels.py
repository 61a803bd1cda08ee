"""The size of the noise at one optimizer step, and what it allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rldbg.analysis.tolerances import Update, knows_nothing, log_prob_error


@dataclass(frozen=True, slots=True)
class NoiseLevel:
    """After one optimizer step (step, epoch, mini-batch).

    `gradient` is the largest difference of an element of its gradients, `parameter` that of the parameters it left,
    `allowed` how many parameters only the optimizer's sensitivity explains, and `roundoff` the unit roundoff that would
    move the results of the next forward pass as far as these parameters do.
    """

    update: Update
    gradient: float
    parameter: float
    allowed: int
    roundoff: float

    @property
    def log_prob(self) -> float:
        """What this adds to the tolerance of a log prob in the next pass."""
        return log_prob_error(self.roundoff)

    @property
    def hides_all(self) -> bool:
        """Whether the runs are so far apart that what their models compute from here on cannot be judged."""
        return knows_nothing(self.roundoff)

    def to_dict(self) -> dict[str, Any]:
        step, epoch, mini_batch = self.update
        return {
            "step": step,
            "epoch": epoch,
            "mini_batch": mini_batch,
            "gradient": self.gradient,
            "parameter": self.parameter,
            "allowed": self.allowed,
            "roundoff": self.roundoff,
            "log_prob": self.log_prob,
        }
