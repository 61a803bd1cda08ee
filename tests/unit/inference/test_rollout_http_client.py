"""The rollout's own HTTP client against servers that answer in every way, good and bad."""

import asyncio

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
            for answer in script:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                for piece in answer if isinstance(answer, list) else [answer]:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
            writer.close()

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


def test_connections_are_kept_and_replaced_when_the_server_closed_them():
    good = OK + b"Content-Length: 2\r\n\r\n{}"
    assert asked([[good, good, good]], count=3) == ([(200, b"{}")] * 3, 1)
    assert asked([[good], [good], [good]], count=3) == ([(200, b"{}")] * 3, 3)


def test_nobody_listens():
    async def run():
        client = HttpClient(headers={}, connections=1, connect_s=5)
        await client.get("http://127.0.0.1:9/health")

    with pytest.raises(ConnectionRefusedError, match="Connection refused"):
        asyncio.run(run())
