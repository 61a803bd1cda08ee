"""One broker per run: it holds the debug sessions, so that clients may come, go and die."""

from rldbg.live.broker.server import Broker

__all__ = ["Broker"]
