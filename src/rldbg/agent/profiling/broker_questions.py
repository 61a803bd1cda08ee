"""Requests of a profiled process to its broker, on a short-lived connection of their own."""

import contextlib
import threading
import time
from typing import Any

from ..framing import Message, WireError
from ..peer import Peer, dial
from ..settings import BrokerAddress, Settings
from ..stacks import mark_as_ours

_PINGS = 12


class BrokerGone(Exception):
    """There is no broker, or it did not answer in time."""


class Questions:
    """A client of the run's broker; use as a context manager."""

    def __init__(self, settings: Settings) -> None:
        address = BrokerAddress.read(settings.run)
        if address is None:
            raise BrokerGone("this run has no broker")
        try:
            connection = dial(address, kind="client", token=address.token, about={"name": "profile"})
        except (OSError, WireError) as error:
            raise BrokerGone(str(error)) from error
        self._peer = Peer(connection)
        mark_as_ours(threading.Thread(target=self._read, name="rldbg-questions", daemon=True)).start()

    def __enter__(self) -> "Questions":
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.close()

    def ask(self, op: str, body: Message, timeout_s: float) -> Any:
        try:
            return self._peer.request(op, body, timeout_s)
        except (WireError, TimeoutError) as error:
            raise BrokerGone(str(error)) from error

    def _read(self) -> None:
        with contextlib.suppress(WireError):
            self._peer.serve()

    def clock_offset(self) -> tuple[int, int]:
        """The broker's clock less ours, and the round trip of the quickest of some exchanges, in nanoseconds.

        The true offset lies within half the round trip of the answer.
        """
        measured = []
        for _ in range(_PINGS):
            before = time.time_ns()
            theirs = int(self.ask("clock", {}, timeout_s=5.0)["wall_ns"])
            after = time.time_ns()
            measured.append((after - before, theirs - (before + after) // 2))
        round_trip, offset = min(measured)
        return offset, round_trip
