"""Warnings that are given once: one per micro-batch would drown the trainer's own log."""

import logging

_LOGGER = logging.getLogger("rldbg.recording")


class WarnOnce:
    """Remembers the warnings that were given; from any thread."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, about: str, message: str) -> None:
        """Log the message unless there was one about the same before."""
        if about not in self._said:
            self._said.add(about)
            _LOGGER.warning("%s", message)
