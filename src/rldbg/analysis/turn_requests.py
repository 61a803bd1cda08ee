"""What the engine was asked in each turn, as far as `extra_fields.turns` says it: the prompt's length and hash, and how
many tokens were answered. The trained tokens must begin with each of these prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rldbg.analysis.side import Side
from rldbg.analysis.tokens import SampleTokens
from rldbg.core import SampleId, prompt_hash


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn: the number of tokens before it and their hash, and the length of the answer."""

    prompt_tokens: int
    prompt_hash: str
    tokens: int

    def is_prefix_of(self, tokens: np.ndarray) -> bool:
        """Whether a sequence begins with this prompt."""
        before = np.asarray(tokens[: self.prompt_tokens], dtype="<i8")
        return len(before) == self.prompt_tokens and prompt_hash(before.tobytes()) == self.prompt_hash


def turn_requests(side: Side, step: int) -> dict[SampleId, list[TurnRequest]]:
    """By sample; empty where the recording does not say."""
    found: dict[SampleId, list[TurnRequest]] = {}
    for kind in ("trajectory", "prepared_trajectories"):
        for record in side.records(kind, step):
            extras = record.fields.get("extra_fields") or ()
            for sample, extra in zip(record.samples, extras, strict=False):
                turns = extra.get("turns") if isinstance(extra, dict) else None
                if isinstance(turns, list | tuple):
                    found[sample] = [
                        TurnRequest(int(turn["prompt_tokens"]), str(turn["prompt_hash"]), int(turn["tokens"]))
                        for turn in turns
                    ]
    return found


def rewritten_turn(sample: SampleTokens, turns: list[TurnRequest]) -> int | None:
    """The first turn, from 1, whose prompt the trained tokens do not begin with; None when they begin with all."""
    return next((number for number, turn in enumerate(turns, 1) if not turn.is_prefix_of(sample.tokens)), None)
