"""Requests between clients and the broker: a lost connection is an error at once, an unread one stays bounded."""

import asyncio
import contextlib
import json
import threading
import time

import pytest

from rldbg.agent import PEER_LIMIT_BYTES, Decoder, encode
from rldbg.core import UnreachableError
from rldbg.live import BrokerClient
from rldbg.live.broker import Broker
from rldbg.live.broker.async_peer import REQUESTS_AT_ONCE, UNREAD_LIMIT_BYTES, AsyncPeer, Stream


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


@contextlib.asynccontextmanager
async def _connected(serve):
    """A raw connection to a server; `serve` gets the server's stream."""
    streams = asyncio.Queue()

    async def accept(reader, writer):
        streams.put_nowait(Stream(reader, writer, PEER_LIMIT_BYTES))
        await serve(streams._queue[-1])

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer, await streams.get()
    finally:
        writer.transport.abort()
        server.close()


def test_a_client_that_never_reads_is_not_answered_without_end():
    answered = []
    text = "x" * 200_000
    asked = REQUESTS_AT_ONCE * 2

    async def on_request(op, body):
        answered.append(op)
        return text

    async def on_event(event, body):
        raise AssertionError

    async def flood():
        async def serve(stream):
            await AsyncPeer(stream, on_request=on_request, on_event=on_event).run()

        async with _connected(serve) as (reader, writer, stream):
            # WHEN a client asks far more than it reads
            request = encode({"type": "request", "id": 1, "op": "stacks", "body": {}})
            writer.write(request * asked)
            done = -1
            while done != len(answered):
                done = len(answered)
                await asyncio.sleep(0.3)
            # THEN only some of its requests are carried out, and little is queued for it
            assert REQUESTS_AT_ONCE <= done < asked
            assert stream._writer.transport.get_write_buffer_size() < 4 * len(text)
            # AND the rest is answered once it reads
            decoder, received = Decoder(), 0
            while received < asked:
                received += len(decoder.feed(await reader.read(1 << 20)))

    asyncio.run(asyncio.wait_for(flood(), 60))
    assert len(answered) == asked


def test_an_editor_that_never_reads_is_disconnected():
    async def flood():
        served = asyncio.Event()

        async def serve(stream):
            served.set()
            await asyncio.Event().wait()

        async with _connected(serve) as (_reader, _writer, stream):
            await served.wait()
            event = {"type": "event", "event": "output", "body": {"output": "x" * 1_000_000}}
            most = 0
            for _ in range(3 * UNREAD_LIMIT_BYTES // 1_000_000):
                stream.send(event)
                most = max(most, stream._writer.transport.get_write_buffer_size())
            return most, stream._writer.is_closing()

    most, closing = asyncio.run(flood())
    assert closing and most <= UNREAD_LIMIT_BYTES + 2_000_000
