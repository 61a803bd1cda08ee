"""What a training loop may say about itself: `rldbg.step(n)` and `rldbg.phase(name)`.

Both cost one attribute lookup where no profile is armed, and need nothing but this module.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def step(number: int | None = None) -> None:
    """Step `number` begins here, counted from 1 as in `rldbg profile --steps`; without a number, the next one."""
    profile: Any = getattr(sys, "_rldbg_profile", None)
    if profile is not None:
        profile.step(number)


def phase(name: str) -> AbstractContextManager[None]:
    """`with rldbg.phase("reward"):` puts a phase of your own on the timeline."""
    profile: Any = getattr(sys, "_rldbg_profile", None)
    if profile is None:
        return nullcontext()
    span: AbstractContextManager[None] = profile.span(name)
    return span
