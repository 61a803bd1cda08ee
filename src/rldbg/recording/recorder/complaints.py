"""What a recorder has to say, each thing once: a warning every micro-batch would drown the trainer's own log."""

import logging

_LOGGER = logging.getLogger("rldbg.recording")


class Complaints:
    """Warnings that were already given; from any thread."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def once(self, about: str, message: str) -> None:
        """Logs the message unless something about the same was said before."""
        if about not in self._said:
            self._said.add(about)
            _LOGGER.warning("%s", message)
