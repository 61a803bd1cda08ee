"""The bug zoo: realistic bugs that can be built into the trainer, and how well check and compare name them."""

from rldbg.trainer.zoo.bug import Bug
from rldbg.trainer.zoo.catalogue import BUGS, find_bug, injected

__all__ = ["BUGS", "Bug", "find_bug", "injected"]
