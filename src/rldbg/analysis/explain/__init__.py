"""Why two recordings differ: hypotheses tried on the recorded numbers, reported only when they fit."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from rldbg.analysis.explain import (
    advantages,
    batches,
    log_probs,
    losses,
    optimizer,
    ratios,
    rewards,
    rollout,
    sequences,
    updates,
)
from rldbg.analysis.explain.evidence import Evidence, Explanation
from rldbg.analysis.side import Side
from rldbg.analysis.stages import Stage

Hypothesis = Callable[[Evidence], Iterator[Explanation]]

# The order among hypotheses that fit equally well: those decided by tokens and masks before those that are fitted.
_SOURCES = (updates, sequences, batches, rewards, advantages, rollout, log_probs, ratios, losses, optimizer)


_NAMES_THE_CAUSE = 0.6
_NEAREST_SHOWN = 3
_WORTH_SHOWING = 0.05


def hypotheses_of(stage: Stage) -> list[Hypothesis]:
    """The hypotheses that can make this the first stage that differs."""
    return [hypothesis for source in _SOURCES for hypothesis in source.HYPOTHESES.get(stage.value, ())]


class Reasons(NamedTuple):
    """The hypotheses that fit, best first; if none does, the closest ones, which are not the cause."""

    explanations: list[Explanation]
    nearest: list[Explanation]


def explain(a: Side, b: Side, stage: Stage, step: int, epoch: int = 0, mini_batch: int = 0) -> Reasons:
    """Why both sides first differ at one optimizer step."""
    evidence = Evidence(a, b, step, epoch, mini_batch)
    return ranked(item for hypothesis in hypotheses_of(stage) for item in hypothesis(evidence))


def ranked(items: Iterable[Explanation]) -> Reasons:
    """Splits explanations into those that fit and those that do not."""
    tried = sorted(items, key=lambda item: -round(item.share, 3))
    fitting = [item for item in tried if item.fits]
    if not fitting:
        return Reasons([], tried[:1] + [item for item in tried[1:_NEAREST_SHOWN] if item.share >= _WORTH_SHOWING])
    # An explanation that names the fault replaces one that only locates it.
    return Reasons([item for item in fitting if item.share >= _NAMES_THE_CAUSE] or fitting, [])


__all__ = ["Evidence", "Explanation", "Reasons", "explain", "hypotheses_of", "ranked"]
