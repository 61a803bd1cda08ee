"""Questions that a profiled process has for its broker, on a connection of their own that lasts as long as they do."""

import time
from typing import Any

from ..settings import BrokerAddress, Settings
from ..wire import Connection, Message, WireError, dial

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
            self._connection: Connection = dial(
                (address.host, address.port), kind="client", token=address.token, about={"name": "profile"}
            )
        except (OSError, WireError) as error:
            raise BrokerGone(str(error)) from error
        self._last_id = 0

    def __enter__(self) -> "Questions":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, op: str, body: Message, timeout_s: float) -> Any:
        self._last_id += 1
        try:
            self._connection.send({"type": "request", "id": self._last_id, "op": op, "body": body})
            while True:
                message = self._connection.receive(timeout_s=timeout_s)
                if message.get("id") == self._last_id:
                    break
        except (OSError, WireError) as error:
            raise BrokerGone(str(error) or f"no answer to {op}") from error
        if not message.get("ok"):
            raise BrokerGone(str(message.get("error")))
        return message.get("body")

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
