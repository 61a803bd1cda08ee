"""The wire format: frames survive any cut, garbage is refused, and nobody passes without the token."""

import random
import socket
import threading

import pytest

from rldbg.agent import PROTOCOL, Decoder, Refused, WireError, dial, encode, nonce, proof, proves


def test_messages_survive_any_cut_of_the_stream():
    messages = [{"n": n, "text": "é" * n, "nested": {"list": [1, None, 2.5]}} for n in range(30)]
    stream = b"".join(map(encode, messages))
    for seed in range(50):
        rng = random.Random(seed)
        decoder, received, position = Decoder(), [], 0
        while position < len(stream):
            size = rng.randint(1, 200)
            received += decoder.feed(stream[position : position + size])
            position += size
        assert received == messages


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        b"x" * 300,
        b"Content-Length: 99999999999\r\n\r\n",
        b"Content-Length: -5\r\n\r\n",
        b"Content-Length: 3\r\n\r\nabc",
        b"Content-Length: 2\r\n\r\n[]",
        b"Content-Length: 100000\r\n\r\n" + b"[" * 100000,
    ],
)
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(WireError):
        Decoder().feed(data)


def test_random_bytes_never_do_more_than_raise():
    rng = random.Random(4)
    refused = 0
    for _ in range(2000):
        decoder = Decoder(limit_bytes=4096)
        data = rng.choice([b"", b"Content-Length: 12\r\n\r\n"]) + rng.randbytes(rng.randint(1, 400))
        try:
            decoder.feed(data)
        except WireError:
            refused += 1
    assert refused > 500


def test_rest_is_what_a_second_decoder_can_go_on_with():
    whole = encode({"a": 1}) + encode({"b": "long" * 100})
    for cut in range(1, len(whole)):
        first, second = Decoder(), Decoder()
        received = first.feed(whole[:cut])
        received += second.feed(first.rest() + whole[cut:])
        assert received == [{"a": 1}, {"b": "long" * 100}]


def test_a_proof_depends_on_token_side_and_both_nonces():
    a, b = nonce(), nonce()
    base = proof("t", "peer", a, b)
    others = [proof("u", "peer", a, b), proof("t", "broker", a, b), proof("t", "peer", b, a)]
    assert proves(base, base) and not any(proves(other, base) for other in others)
    assert not proves(None, base) and not proves(17, base) and not proves("ü", base)


class _FakeBroker:
    """A listener that answers a hello with one prepared message."""

    def __init__(self, reply):
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = self._server.getsockname()
        self.received = []
        self._reply = reply
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        connection, _ = self._server.accept()
        with connection:
            decoder = Decoder()
            while not self.received:
                self.received += decoder.feed(connection.recv(4096))
            connection.sendall(encode(self._reply))
            while data := connection.recv(4096):
                self.received += decoder.feed(data)

    def join(self):
        self._thread.join(5)
        self._server.close()


def test_a_stranger_on_the_brokers_port_learns_nothing():
    # GIVEN somebody else who listens where the broker was
    stranger = _FakeBroker({"type": "challenge", "protocol": PROTOCOL, "nonce": nonce(), "proof": "0" * 64})
    # WHEN an agent dials
    with pytest.raises(WireError, match="does not know this run's token"):
        dial(stranger.address, kind="agent", token="secret", about={"role": "policy"}, timeout_s=5)
    stranger.join()
    # THEN it heard a hello with a nonce, and neither the token nor anything about the process
    assert [message["type"] for message in stranger.received] == ["hello"]
    assert "secret" not in str(stranger.received) and "policy" not in str(stranger.received)


def test_a_refusal_is_a_message_not_a_hang():
    broker = _FakeBroker({"type": "refused", "reason": "it speaks protocol 1 and this broker protocol 9"})
    with pytest.raises(Refused, match="protocol 9"):
        dial(broker.address, kind="client", token="t", about={}, timeout_s=5)
    broker.join()
