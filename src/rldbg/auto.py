"""`import rldbg.auto` starts the agent in this process, without a launcher.

Does nothing in a process that belongs to no run (RLDBG_RUN is not set).
"""

import sys
from collections.abc import Sequence

from rldbg import agent as _agent


def breakpoint(
    ranks: str | int | Sequence[int] = "",
    when: bool = True,
    nth: int | None = None,
    every: int | None = None,
    timeout: float | None = None,
) -> None:
    """Stop here on the selected ranks if `when` is true, at the n-th or every n-th hit, for at most `timeout` seconds.

    Outside a run the same processes are selected; they call the builtin breakpoint().
    """
    frame = sys._getframe(1)
    running = _agent.start()
    selection = ranks if isinstance(ranks, str) else ",".join(map(str, [ranks] if isinstance(ranks, int) else ranks))
    if running is None:
        _agent.stop_without_a_run(frame, ranks=selection, when=when, nth=nth, every=every)
    else:
        running.stop_if(frame, ranks=selection, when=when, nth=nth, every=every, timeout_s=timeout)


def identify(*, role: str | None = None, rank: int | None = None, **coordinates: int) -> None:
    """Name this process if the environment does not: identify(role="policy", rank=3, dp=0, tp=3)."""
    running = _agent.start()
    if running is not None:
        running.identify(role=role, rank=rank, coordinates=coordinates or None)


_agent.start()

__all__ = ["breakpoint", "identify"]
