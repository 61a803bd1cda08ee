"""Stacks of many processes as text: identical ones once, with the processes that share them."""

from collections.abc import Iterator, Sequence

from rldbg.live import StackGroup, compress

_SHOWN_FRAMES = 12


def to_lines(groups: Sequence[StackGroup]) -> Iterator[str]:
    for group in groups:
        yield ""
        thread = f"  {group.thread}" if group.thread not in ("", "MainThread") else ""
        state = f"  raised {group.raised}" if group.raised else f"  waits {group.waiting}" if group.waiting else ""
        yield compress(group.who) + thread + state
        if group.unanswered:
            yield f"    no stack: {group.unanswered}"
        for frame in group.frames[:_SHOWN_FRAMES]:
            yield f"    {frame['file']}:{frame['line']} {frame['function']}"
            for name, facts in (frame.get("locals") or {}).items():
                yield f"        {name} = {facts['text']}"
        if len(group.frames) > _SHOWN_FRAMES:
            yield f"    ... {len(group.frames) - _SHOWN_FRAMES} more frames"
