"""The rollout's own HTTP client against servers that answer in every way, good and bad."""

import asyncio
from contextlib import closing

import pytest

from rldbg.inference.workflows.http_client import BrokenOff, HttpClient

OK = b"HTTP/1.1 200 OK\r\n"


def asked(answers, count=1):
    """What `count` requests one after the other give, when connection i of the server answers with answers[i]."""

    async def run():
        served = []

        async def serve(reader, writer):
            script = answers[len(served)] if len(served) < len(answers) else answers[-1]
            served.append(0)
            with closing(writer):
                for answer in script:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                    await reader.readexactly(length)
                    for piece in answer if isinstance(answer, list) else [answer]:
                        writer.write(piece)
                        await writer.drain()
                        await asyncio.sleep(0)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = HttpClient(headers={"X-Test": "1"}, connections=2, connect_s=5)
        place = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate"
        try:
            found = [await asyncio.wait_for(client.post(place, {"n": number}), 10) for number in range(count)]
        finally:
            await client.close()
            server.close()
        return [(item.status, item.body) for item in found], len(served)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 2\r\n\r\n{}",
        [OK, b"content-LENGTH:2\r\n", b"\r\n", b"{", b"}"],
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n",
        [OK + b"Transfer-Encoding: chunked\r\n\r\n2\r", b"\n{}\r\n0\r\nTrailer: 1\r\n", b"\r\n"],
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\n{}",
        OK + b"Connection: close\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
    ],
)
def test_answers_in_every_form(answer):
    assert asked([[answer]]) == ([(200, b"{}")], 1)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"Content-Length: 10\r\n\r\n{}",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: many\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
        OK + b"Content-Le",
        OK + b"x" * (1 << 19),
    ],
)
def test_answers_that_are_none(answer):
    with pytest.raises(BrokenOff):
        asked([[answer]])


def served(method, connections, count, answer=OK):
    """The requests a server got while a client sends `count`; it answers as many per connection as `connections` say.

    One more request on a connection is read, and the connection reset without an answer.
    """

    async def run():
        got, numbers = [], iter(connections)

        async def serve(reader, writer):
            try:
                for left in range(next(numbers), -1, -1):
                    head = await reader.readuntil(b"\r\n\r\n")
                    await reader.readexactly(
                        int((head.lower() + b"content-length: 0").split(b"content-length: ")[1].split()[0])
                    )
                    got.append(head.split()[0].decode())
                    if left:
                        writer.write(answer + b"Content-Length: 2\r\n\r\n{}")
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = HttpClient(headers={}, connections=2, connect_s=5)
        place = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate"
        try:
            for _ in range(count):
                await asyncio.wait_for(client.get(place) if method == "GET" else client.post(place, {}), 10)
        except BrokenOff as error:
            return got, str(error)
        finally:
            await client.close()
            server.close()
        return got, ""

    return asyncio.run(run())


def test_connections_are_kept():
    assert served("POST", [3], 3) == (["POST"] * 3, "")


def test_a_generation_is_never_sent_twice():
    got, error = served("POST", [1, 9], 2)
    assert got == ["POST"] * 2 and "without an answer" in error


def test_a_question_is_asked_again_on_a_new_connection():
    assert served("GET", [1, 9], 2) == (["GET"] * 3, "")


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch):
    monkeypatch.setattr("rldbg.inference.workflows.http_client._MOST_IDLE_S", -1.0)
    assert served("POST", [1, 1, 1], 3) == (["POST"] * 3, "")


def test_a_connection_is_not_used_again_after_a_server_error():
    """uvicorn closes it after an exception of the application, but does not say so in the answer."""
    assert served("POST", [1, 1, 1], 3, b"HTTP/1.1 500 Oh\r\n") == (["POST"] * 3, "")


def test_nobody_listens():
    async def run():
        client = HttpClient(headers={}, connections=1, connect_s=5)
        await client.get("http://127.0.0.1:9/health")

    with pytest.raises(ConnectionRefusedError, match="Connection refused"):
        asyncio.run(run())
