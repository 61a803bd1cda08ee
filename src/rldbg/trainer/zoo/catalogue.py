"""All bugs by name, and the run with one of them built in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rldbg.core import UsageError, did_you_mean
from rldbg.trainer.zoo import (
    advantage_bugs,
    asynchronous_bugs,
    conversation_bugs,
    expert_bugs,
    input_bugs,
    log_prob_bugs,
    loss_bugs,
    rank_bugs,
    replica_bugs,
    reward_bugs,
    rollout_bugs,
    staleness_bugs,
    turn_bugs,
    turn_loss_bugs,
    update_bugs,
    weight_bugs,
)
from rldbg.trainer.zoo.bug import Bug, replaced
from rldbg.trainer.zoo.variations import VARIATIONS

_SOURCES = (
    *(rollout_bugs, reward_bugs, advantage_bugs, log_prob_bugs, loss_bugs, update_bugs),
    *(turn_bugs, rank_bugs, asynchronous_bugs, input_bugs, weight_bugs, conversation_bugs, expert_bugs),
    *(turn_loss_bugs, replica_bugs, staleness_bugs),
)
BUGS: tuple[Bug, ...] = tuple(bug for source in _SOURCES for bug in source.BUGS)


def find_bug(name: str) -> Bug:
    by_name = {item.name: item for item in (*BUGS, *VARIATIONS)}
    if name not in by_name:
        raise UsageError(f"the zoo has no bug {name!r}", did_you_mean(name, by_name, "rldbg zoo list"))
    return by_name[name]


@contextmanager
def injected(names: str) -> Iterator[list[Bug]]:
    """Everything that runs inside has the bug, or several: joined by `+`."""
    found = [find_bug(name) for name in names.split("+")]
    with ExitStack() as stack:
        for bug in found:
            for at in bug.at:
                stack.enter_context(replaced(at, bug.spoiled))
        yield found
