"""What the tripwire caught, for a terminal."""

from collections.abc import Iterator, Sequence
from typing import Any

from rldbg.reports.findings import to_terminal as findings_to_terminal
from rldbg.tripwire import Event


def to_terminal(steps: int, events: Sequence[Event], notes: Sequence[str] = ()) -> Iterator[Any]:
    yield f"{steps} steps checked, {len(events) or 'no'} event{'' if len(events) == 1 else 's'}"
    yield from notes
    if events:
        yield findings_to_terminal([event.to_finding() for event in events])
