"""The parts of a sample: prompt, what the model wrote and what the environment put between, by mask and text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

# What opens a part inside a turn, and what ends it: reasoning and calls of tools, as chat templates write them.
_INNER = (
    (
        "thinking",
        re.compile(r"<(think|thinking|reasoning)>|<\|channel\|>analysis"),
        re.compile(r"</(think|thinking|reasoning)>|<\|end\|>"),
    ),
    (
        "tool call",
        re.compile(r"<tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>"),
        re.compile(r"</tool_call>|<\|eom_id\|>|<\|im_end\|>"),
    ),
)
_HEADER = re.compile(
    r"<\|(?:im_start|start_header_id|start)\|>\s*(system|user|assistant|tool|developer|ipython)", re.IGNORECASE
)
_HEADER_SPAN = 6


@dataclass(frozen=True, slots=True)
class TurnPart:
    """Tokens from start up to end, and whose they are."""

    role: str
    start: int
    end: int

    def to_dict(self) -> dict[str, Any]:
        return {"role": self.role, "start": self.start, "end": self.end}


def parts_of(trained: np.ndarray | None, count: int, texts: Sequence[str] | None) -> list[TurnPart]:
    """All parts in order, without gaps."""
    by_mask = _by_mask(trained, count)
    if texts is None:
        return by_mask
    return [inner for part in by_mask for inner in _by_text(part, texts)]


def _by_mask(trained: np.ndarray | None, count: int) -> list[TurnPart]:
    if trained is None or not trained.any():
        return [TurnPart("tokens" if trained is None else "not trained", 0, count)] if count else []
    edges = [0, *(np.flatnonzero(np.diff(trained.astype(np.int8))) + 1).tolist(), count]
    last = int(np.flatnonzero(trained)[-1])
    return [
        TurnPart(
            "model" if trained[start] else ("prompt" if start == 0 else "environment" if start < last else "end"),
            start,
            end,
        )
        for start, end in pairwise(edges)
        if start < end
    ]


def _by_text(part: TurnPart, texts: Sequence[str]) -> Iterator[TurnPart]:
    """Cuts a part where a chat header names a role, and where reasoning or a call of a tool begins and ends."""
    role, start, ending = part.role, part.start, None
    for place in range(part.start, part.end):
        text = texts[place]
        if part.role != "model" and (found := _header_at(texts, place, part.end)):
            if place > start:
                yield TurnPart(role, start, place)
            role, start = found, place
        elif ending is None:
            for name, begin, end in _INNER:
                if part.role == "model" and begin.search(text):
                    if place > start:
                        yield TurnPart(role, start, place)
                    role, start, ending = name, place, end
        elif ending.search(text):
            yield TurnPart(role, start, place + 1)
            role, start, ending = part.role, place + 1, None
    if part.end > start:
        yield TurnPart(role, start, part.end)


def _header_at(texts: Sequence[str], place: int, end: int) -> str | None:
    if "<|" not in texts[place]:
        return None
    found = _HEADER.match("".join(texts[place : min(place + _HEADER_SPAN, end)]).lstrip())
    if found is None:
        return None
    role = found.group(1).lower()
    return {"ipython": "tool", "developer": "system", "assistant": "assistant header"}.get(role, role)
