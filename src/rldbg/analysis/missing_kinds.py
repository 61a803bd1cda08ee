"""What was not recorded and would decide where a difference comes from, and which option records it."""

from __future__ import annotations

from collections.abc import Iterator

from rldbg.analysis.results import Comparison, FirstDifference
from rldbg.analysis.side import Side
from rldbg.analysis.stages import Stage
from rldbg.core import Finding, Severity
from rldbg.recording import how_to_record

# By the first stage that differs: kinds that tell its causes apart, and what cannot be told without them.
_DECIDING: dict[Stage, tuple[tuple[str, str], ...]] = {
    Stage.TRAJECTORY: (("old_log_probs", "the engine's log probs from the trainer's"),),
    Stage.ADVANTAGE: (("trajectory", "a different reward from a different normalisation"),),
    Stage.OLD_LOG_PROBS: (("batch_inputs", "different inputs (padding, positions, masks) from a different model"),),
    Stage.FORWARD: (("batch_inputs", "different inputs (padding, positions, masks) from a different model"),),
    Stage.LOSS: (("is_loss_debug", "ratio, clip and advantages from the reduction of tokens to one loss"),),
    Stage.GRADIENT: (
        ("loss", "a different loss from a different backward pass"),
        ("is_loss_debug", "the form of the loss from its gradient"),
    ),
    Stage.PARAMETER: (("gradient", "loss and gradient from the optimizer"),),
}
# The kinds that show each stage; any one of them is enough.
_SHOWN_BY: dict[Stage, tuple[str, ...]] = {
    Stage.TRAJECTORY: ("trajectory", "prepared_trajectories"),
    Stage.OLD_LOG_PROBS: ("old_log_probs", "is_loss_debug"),
    Stage.FORWARD: ("forward_data", "is_loss_debug"),
    Stage.LOSS: ("loss", "is_loss_debug"),
    Stage.GRADIENT: ("gradient",),
    Stage.PARAMETER: ("param",),
}


def missing_kinds(comparison: Comparison, a: Side, b: Side) -> Iterator[Finding]:
    """The stages that the fault may lie in unseen; and, without a named cause, the kinds that would decide it."""
    first = comparison.first_difference
    if first is None:
        return
    unseen = [stage for stage in _upstream(first, a, b) if not _has(a, b, _SHOWN_BY[stage], first.step)]
    if unseen:
        names = ", ".join(stage.value for stage in unseen)
        yield Finding(
            "cannot-place",
            Severity.INFO,
            f"step {first.step}",
            tuple(f"not recorded on both sides: {' or '.join(_SHOWN_BY[stage])}" for stage in unseen),
            f"the fault lies in {first.stage.value} or in a stage before it that was not recorded: {names}",
            tuple(line for stage in unseen for line in how_to_record(_SHOWN_BY[stage][0])),
        )
    if comparison.explanations:
        return
    for kind, what in _DECIDING.get(first.stage, ()):
        if not _has(a, b, (kind,), first.step):
            yield Finding(
                "undecided",
                Severity.INFO,
                f"step {first.step}",
                (f"{kind} of step {first.step} was not recorded on both sides",),
                f"cannot tell {what}",
                how_to_record(kind),
            )


def _upstream(first: FirstDifference, a: Side, b: Side) -> Iterator[Stage]:
    """What happens before the first difference in its step; after an earlier step, that one's stages too."""
    earlier = min(a.steps() & b.steps(), default=first.step) < first.step
    for stage in _SHOWN_BY:
        if stage is not first.stage and (earlier or stage.order < first.stage.order):
            yield stage


def _has(a: Side, b: Side, kinds: tuple[str, ...], step: int) -> bool:
    """Whether both sides have any of the kinds, at this step or before."""
    return any(any(known <= step for known in a.steps(kind) & b.steps(kind)) for kind in kinds)
