"""Answers of many processes as text: identical ones once with their ranks, unusual ones marked."""

from collections.abc import Iterator

from rldbg.live import BroadcastResult, compress


def to_lines(result: BroadcastResult) -> Iterator[str]:
    for group in result.groups:
        text = group.text
        if "\n" in text:
            text = "".join(f"\n    {line}" for line in text.split("\n"))
        yield f"{'! ' if group.odd else '  '}{compress(group.who)}: {text}"
    if result.spread and len(result.groups) > 1:
        spread = result.spread
        yield f"  min {spread.low:g}  median {spread.middle:g}  max {spread.high:g}"


def notes(result: BroadcastResult) -> Iterator[str]:
    if result.not_stopped:
        yield f"skipped, because not stopped: {compress(result.not_stopped)}"
