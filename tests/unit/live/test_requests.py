"""Requests between clients and the broker: a lost connection is an error at once, an unread one stays bounded."""

import asyncio
import contextlib
import json
import threading
import time

import pytest

from rldbg.core import UnreachableError
from rldbg.live import BrokerClient
from rldbg.live.broker import Broker


class _BrokerThread:
    """A broker on an event loop of its own, in this process; `die` drops all its connections without a word."""

    def __init__(self, run):
        self._run = run
        self._transports = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_):
        self.die()

    def die(self):
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)

    async def _serve(self):
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        broker = Broker(token="secret", run=self._run)

        async def accept(reader, writer):
            self._transports.append(writer.transport)
            await broker.accept(reader, writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        (self._run / "broker.json").write_text(json.dumps({"host": "127.0.0.1", "port": port, "token": "secret"}))
        self._ready.set()
        await self._ended.wait()
        server.close()
        for transport in self._transports:
            transport.abort()
        await asyncio.sleep(0)


def test_a_request_after_the_broker_died_fails_at_once(tmp_path):
    # GIVEN a client whose broker dies while nothing is asked
    with _BrokerThread(tmp_path) as broker, BrokerClient(tmp_path) as client:
        assert client.request("ps")["processes"] == []
        broker.die()
        # WHEN it asks again and again
        begin = time.monotonic()
        for _ in range(3):
            with pytest.raises(UnreachableError, match="connection to the broker was lost") as caught:
                client.request("ps", timeout_s=30.0)
            assert "rldbg ps" in caught.value.hint
        # THEN no answer is waited for
        assert time.monotonic() - begin < 15.0


def test_a_request_under_way_when_the_broker_dies_fails_at_once(tmp_path):
    with _BrokerThread(tmp_path) as broker, BrokerClient(tmp_path) as client:
        failures = []

        def ask():
            with pytest.raises(UnreachableError) as caught:
                client.request("ps", timeout_s=60.0)
            failures.append(str(caught.value))

        # WHEN the connection ends although the broker has not answered
        broker._loop.call_soon_threadsafe(time.sleep, 1.0)
        asking = threading.Thread(target=ask)
        asking.start()
        broker.die()
        asking.join(30)
        # THEN the thread that asked was told
        assert not asking.is_alive() and "lost" in failures[0]
