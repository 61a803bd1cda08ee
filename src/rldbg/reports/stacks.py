"""Stacks of many processes as text: identical ones once, with the processes that share them."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rldbg.agent import Message
from rldbg.agent.waits import is_users
from rldbg.live import StackGroup, compress

_SHOWN_FRAMES = 12
_SHOWN_THREADS = 4


def to_lines(groups: Sequence[StackGroup], *, brief: bool = False) -> Iterator[str]:
    """With `brief`, frames of libraries but the innermost are only counted."""
    for group in groups:
        yield ""
        thread = f"  {_named((group.thread, *group.others))}" if group.thread not in ("", "MainThread") else ""
        state = f"  raised {group.raised}" if group.raised else f"  waits {group.waiting}" if group.waiting else ""
        yield compress(group.who) + thread + state
        if group.unanswered:
            yield f"    no stack: {group.unanswered}"
        shown = list(_brief(group.frames) if brief else map(_frame_lines, group.frames))
        for lines in shown[:_SHOWN_FRAMES]:
            yield from lines
        if len(shown) > _SHOWN_FRAMES:
            yield f"    ... {len(shown) - _SHOWN_FRAMES} more frames"


def _named(threads: Sequence[str]) -> str:
    more = f" and {len(threads) - _SHOWN_THREADS} more" if len(threads) > _SHOWN_THREADS else ""
    return ", ".join(threads[:_SHOWN_THREADS]) + more


def _brief(frames: Sequence[Message]) -> Iterator[list[str]]:
    if not any(is_users(frame["file"]) for frame in frames[:1]):
        yield from map(_frame_lines, frames[:1])
        frames = frames[1:]
    for own, together in groupby(frames, lambda frame: is_users(frame["file"])):
        members = list(together)
        if own:
            yield from map(_frame_lines, members)
        else:
            yield [f"    ... {len(members)} frame{'s' * (len(members) > 1)} of libraries"]


def _frame_lines(frame: Message) -> list[str]:
    values = [f"        {name} = {facts['text']}" for name, facts in (frame.get("locals") or {}).items()]
    return [f"    {frame['file']}:{frame['line']} {frame['function']}", *values]
