"""Annotations of a training loop: `rldbg.step(n)` and `rldbg.phase(name)`.

Without an active profile each call costs one attribute lookup.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class _Step:
    """The end of a `with rldbg.step(n):` block: notifies a recorded loop that the step has ended."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.end_step()


def step(number: int | None = None) -> AbstractContextManager[None]:
    """Mark the start of step `number`, counted from 1 as in `rldbg profile --steps`; by default the next step.

    As a block, `with rldbg.step(n):`, it also ends the step in the recording of `rldbg.record_loop`, which keeps the
    number as it is given.
    """
    profile: Any = getattr(sys, "_rldbg_profile", None)
    if profile is not None:
        profile.step(number)
    loop: Any = getattr(sys, "_rldbg_loop", None)
    if loop is not None:
        loop.enter_step(number)
    return _Step(loop)


def phase(name: str) -> AbstractContextManager[None]:
    """Add a phase to the timeline: `with rldbg.phase("reward"): ...`."""
    profile: Any = getattr(sys, "_rldbg_profile", None)
    if profile is None:
        return nullcontext()
    span: AbstractContextManager[None] = profile.span(name)
    return span
