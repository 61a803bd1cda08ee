"""Why two recordings differ: hypotheses tried on the recorded numbers, reported only when they fit."""

from collections.abc import Callable, Iterator

from rldbg.analysis.explain import losses, rollout, values
from rldbg.analysis.explain.evidence import Evidence, Explanation
from rldbg.analysis.side import Side
from rldbg.analysis.stages import Stage

Hypothesis = Callable[[Evidence], Iterator[Explanation]]


def hypotheses_of(stage: Stage) -> list[Hypothesis]:
    """What can make this the first stage that differs."""
    found: list[Hypothesis] = []
    for source in (rollout.HYPOTHESES, values.HYPOTHESES, losses.HYPOTHESES):
        found.extend(source.get(stage.value, ()))
    return found


def explain(a: Side, b: Side, stage: Stage, step: int, epoch: int = 0, mini_batch: int = 0) -> list[Explanation]:
    """The hypotheses that fit, best first, for what first differs at one optimizer step."""
    evidence = Evidence(a, b, step, epoch, mini_batch)
    fitting = [item for hypothesis in hypotheses_of(stage) for item in hypothesis(evidence) if item.fits]
    return sorted(fitting, key=lambda item: (-item.share, item.residual))


__all__ = ["Evidence", "Explanation", "explain", "hypotheses_of"]
