"""The hypothesis that a conversation's history was rewritten between the engine and the trainer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rldbg.analysis.explain.evidence import Evidence, Explanation
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.turn_requests import rewritten_turn, turn_requests


def history_rewritten(evidence: Evidence) -> Iterator[Explanation]:
    """On one side trained tokens do not begin with what the engine was asked; on the other they do."""
    found = [_rewritten(side) for _, side in evidence.sides]
    for (label, _), mine, other in zip(evidence.sides, found, reversed(found), strict=True):
        if mine and other is not None and not other:
            turn, count = min(mine), sum(mine.values())
            text = (
                f"in {count} samples of {label} the trained tokens are not the prompt that the engine was given, from "
                f"turn {turn} on: the history was rendered or tokenised again"
            )
            yield Explanation("history-rewritten", text, parameters={"side": label, "turn": turn, "samples": count})


def _rewritten(side: SideStep) -> Counter[int] | None:
    """How many samples break in which turn; None when the recording does not say."""
    requests = turn_requests(side.side, side.step)
    if not requests:
        return None
    known = (
        rewritten_turn(side.samples[sample], turns) for sample, turns in requests.items() if sample in side.samples
    )
    return Counter(turn for turn in known if turn is not None)


HYPOTHESES = {"trajectory": (history_rewritten,)}
