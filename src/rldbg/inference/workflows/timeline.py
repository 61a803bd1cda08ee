"""What happened in an episode and when, as a Chrome trace: requests, tool calls, reward, and the user's code between.

Times are microseconds on the clock of this process, so that the timelines of all episodes fit on one axis.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rldbg.core import write_whole


@dataclass(slots=True)
class EpisodeSpan:
    """One thing that took time; `details` may be filled while it runs."""

    kind: str
    name: str
    start_us: int
    end_us: int
    details: dict[str, Any] = field(default_factory=dict)


def now_us() -> int:
    return time.perf_counter_ns() // 1000


class Timeline:
    """The spans of one episode, in the order in which they ended."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.spans: list[EpisodeSpan] = []
        self._start_us = now_us()

    @contextmanager
    def span(self, kind: str, name: str, **details: Any) -> Iterator[EpisodeSpan]:
        span = EpisodeSpan(kind, name, now_us(), 0, details)
        try:
            yield span
        finally:
            span.end_us = now_us()
            self.spans.append(span)

    def add(self, kind: str, name: str, start_us: int, end_us: int, **details: Any) -> None:
        self.spans.append(EpisodeSpan(kind, name, start_us, end_us, details))

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Closes the episode: its reward as a point in time, the whole as one span, the gaps as the user's code."""
        end_us = now_us()
        self._fill_gaps(end_us)
        self.add("reward", "reward", end_us, end_us, **outcome)
        self.add("episode", self.title, self._start_us, end_us, **outcome)

    def _fill_gaps(self, end_us: int) -> None:
        cursor = self._start_us
        for span in sorted(self.spans, key=lambda item: item.start_us):
            if span.start_us > cursor:
                self.add("code", "workflow", cursor, span.start_us)
            cursor = max(cursor, span.end_us)
        if end_us > cursor:
            self.add("code", "workflow", cursor, end_us)

    def events(self, track: int) -> list[dict[str, Any]]:
        """Chrome's events, on one track named after the episode."""
        named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": track, "args": {"name": self.title}}
        return [named] + [_event(span, track) for span in sorted(self.spans, key=_outermost_first)]


def _outermost_first(span: EpisodeSpan) -> tuple[int, int]:
    return span.start_us, -span.end_us


def _event(span: EpisodeSpan, track: int) -> dict[str, Any]:
    event = {"name": span.name, "cat": span.kind, "pid": 1, "tid": track, "ts": span.start_us, "args": span.details}
    if span.kind == "reward" and span.end_us == span.start_us:
        return event | {"ph": "i", "s": "t"}
    return event | {"ph": "X", "dur": span.end_us - span.start_us}


def write_trace(file: Path, timelines: Mapping[int, Timeline]) -> None:
    """One file that chrome://tracing and Perfetto open; `timelines` by the number of their track."""
    events = [event for track, timeline in timelines.items() for event in timeline.events(track)]
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, default=str)
    write_whole(file, text)
