"""Settings of `rldbg watch`."""

from dataclasses import dataclass
from pathlib import Path

from rldbg.core import UsageError, check_values, setting
from rldbg.tripwire.expressions import WatchExpression
from rldbg.tripwire.rules import WatchRule, built_in_rules, read_rules

OF_METRICS = ("update_metrics", "training_metrics")
WATCHED_KINDS = ("trajectory", "forward_data", "loss", *OF_METRICS)
"""The fewest kinds that give all measures; none of them holds parameters."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """How a run is watched. Invalid ones are refused here: the process that watches has nobody to tell."""

    stop: bool = False
    """Stop every rank at the end of a step after an event; otherwise events are only noted."""
    when: tuple[str, ...] = ()
    """Expressions over a step's measures; a true one is an event."""
    rules: str = ""
    """A YAML file with further rules; one with the id of a built-in rule takes its place."""
    notify: str = ""
    """A shell command that is called per event; RLDBG_EVENT holds the event as JSON, RLDBG_MESSAGE as text."""
    keep: int = setting(8, at_least=4)
    """Steps that stay on disk besides the pinned ones."""
    around: int = setting(2, at_least=0)
    """Steps before and after an event that are pinned with it."""
    keep_events: int = setting(8, at_least=0)
    """Events of each rule and expression around which steps are pinned: the first ones, which are nearest to the cause.
    Of later ones only the ring has the steps, so that a rule that fires again and again does not fill the disk."""
    checks: bool = True
    """Also run the invariants of `rldbg check`."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.around + 2 > self.keep:
            raise UsageError(
                f"{self.keep} steps are kept, too few for {self.around} before an event",
                f"keep at least {self.around + 2} steps",
            )
        self.read_rules()
        self.expressions()

    def read_rules(self) -> tuple[WatchRule, ...]:
        return read_rules(Path(self.rules)) if self.rules else built_in_rules()

    def expressions(self) -> tuple[WatchExpression, ...]:
        return tuple(map(WatchExpression, self.when))
