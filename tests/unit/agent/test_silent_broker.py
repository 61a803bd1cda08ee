"""A broker that takes a connection and says nothing is stopped or starved: whoever stops waits for it."""

import contextlib
import socket
import threading

import pytest

from rldbg.agent import framing, link, peer
from rldbg.agent.settings import BrokerAddress, Settings

_TOKEN = "secret"


class SlowBroker:
    """Knows the token; answers hellos only when it is told to go on."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.goes_on = threading.Event()
        self.asked = threading.Event()
        self.threads = [threading.Thread(target=self._serve)]
        self.threads[0].start()

    def end(self):
        for thread in self.threads:
            thread.join()
        self.listener.close()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                self.threads.append(threading.Thread(target=self._greet, args=(peer.Connection(sock),)))
                self.threads[-1].start()

    def _greet(self, connection):
        # Those that have been given up meanwhile are closed.
        with contextlib.closing(connection), contextlib.suppress(framing.WireError):
            hello = connection.receive()
            self.asked.set()
            self.goes_on.wait()
            mine = framing.nonce()
            shown = framing.proof(_TOKEN, "broker", hello["nonce"], mine)
            connection.send({"type": "challenge", "nonce": mine, "proof": shown})
            connection.receive()
            connection.send({"type": "welcome", "about": {}})
            connection.receive()


@pytest.fixture
def broker():
    broker = SlowBroker()
    yield broker
    broker.goes_on.set()
    # shutdown wakes the thread that accepts; close alone does not.
    broker.listener.shutdown(socket.SHUT_RDWR)
    broker.end()


@pytest.fixture
def agents_link(broker, tmp_path, monkeypatch):
    """A link for which a second lasts 10 ms."""
    address = BrokerAddress(*broker.listener.getsockname()[:2], _TOKEN)
    monkeypatch.setattr(BrokerAddress, "read", classmethod(lambda _class, _run: address))
    monkeypatch.setattr(BrokerAddress, "is_out_of_reach", lambda _self, _host: False)
    dial = link.dial
    monkeypatch.setattr(
        link, "dial", lambda place, timeout_s=5.0, **rest: dial(place, timeout_s=timeout_s / 100, **rest)
    )
    monkeypatch.setattr(link, "_FIRST_S", 0.15)
    made = link.Link(Settings(run=tmp_path), about=dict, handle=lambda *_: None, woken=lambda: None)
    yield made
    made.pause()
    made.abandon()


def test_a_debug_channel_waits_for_a_silent_broker(broker, agents_link):
    threading.Timer(0.4, broker.goes_on.set).start()
    agents_link.dial_debug_channel(1).close()
    with pytest.raises(link.NoBroker):
        broker.goes_on.clear()
        agents_link.dial_debug_channel(2, silence_s=1.0)


def test_a_stop_waits_for_a_silent_broker_and_a_dying_process_does_not(broker, agents_link):
    agents_link.start()
    broker.asked.wait()
    assert not agents_link.wait_connected(0.2)
    threading.Timer(0.4, broker.goes_on.set).start()
    assert agents_link.wait_connected(60.0)
