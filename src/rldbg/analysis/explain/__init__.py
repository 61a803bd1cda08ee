"""Why two recordings differ: hypotheses tried on the recorded numbers, reported only when they fit."""

from rldbg.analysis.explain import (
    advantages,
    batches,
    critic,
    held_weights,
    histories,
    inputs,
    log_probs,
    loss_model,
    losses,
    masks,
    non_finite,
    optimizer,
    ratios,
    rewards,
    rollout,
    routing,
    sampling,
    sequences,
    updates,
)
from rldbg.analysis.explain.evidence import Evidence, Explanation, Hypothesis, tried
from rldbg.analysis.explain.ranking import MARGIN, Reasons, ranked
from rldbg.analysis.side import Side
from rldbg.analysis.stages import Stage

# The order in which candidates are listed: those decided by tokens and masks before those that are fitted.
_SOURCES = (
    *(
        non_finite,
        held_weights,
        histories,
        routing,
        updates,
        masks,
        sequences,
        inputs,
        batches,
        rewards,
        advantages,
        critic,
    ),
    *(rollout, sampling, log_probs, ratios, losses, loss_model, optimizer),
)


def hypotheses_of(stage: Stage) -> list[Hypothesis]:
    """The hypotheses that can make this the first stage that differs."""
    found = [hypothesis for source in _SOURCES for hypothesis in source.HYPOTHESES.get(stage.value, ())]
    return list(dict.fromkeys(found))


def explain(a: Side, b: Side, stage: Stage, step: int, epoch: int = 0, mini_batch: int = 0) -> Reasons:
    """Why both sides first differ at one optimizer step."""
    evidence = Evidence(a, b, step, epoch, mini_batch)
    return ranked(item for hypothesis in hypotheses_of(stage) for item in tried(hypothesis, evidence))


__all__ = ["MARGIN", "Evidence", "Explanation", "Reasons", "explain", "hypotheses_of", "ranked", "tried"]
