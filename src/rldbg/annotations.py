"""Annotations of a training loop: `rldbg.step(n)` and `rldbg.phase(name)`.

Without an active profile each call costs one attribute lookup.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def step(number: int | None = None) -> None:
    """Mark the start of step `number`, counted from 1 as in `rldbg profile --steps`; by default the next step."""
    profile: Any = getattr(sys, "_rldbg_profile", None)
    if profile is not None:
        profile.step(number)


def phase(name: str) -> AbstractContextManager[None]:
    """Add a phase to the timeline: `with rldbg.phase("reward"): ...`."""
    profile: Any = getattr(sys, "_rldbg_profile", None)
    if profile is None:
        return nullcontext()
    span: AbstractContextManager[None] = profile.span(name)
    return span
