"""A broker with several addresses is reached at the first that leads there; a tunnel's copy names one of its own."""

import json
import socket
import threading

import pytest

from rldbg.agent import BrokerAddress, WireError, dial

FACTS = {"host": "10.0.0.1", "hosts": ["10.0.0.1", "fd00::1"], "port": 7, "token": "t", "node": "head"}


def _read(folder, facts):
    (folder / "broker.json").write_text(json.dumps(facts))
    return BrokerAddress.read(folder)


def test_all_addresses_are_shown_and_the_one_that_led_there_comes_first(tmp_path):
    address = _read(tmp_path, FACTS)
    assert address.place == "10.0.0.1:7 and [fd00::1]:7"
    assert address.from_here("fd00::1").hosts == ("fd00::1", "10.0.0.1")
    assert address.from_here("10.0.0.9") == address.from_here("") == address


def test_a_copy_for_a_tunnel_leads_through_it_alone(tmp_path):
    assert _read(tmp_path, FACTS | {"host": "127.0.0.1"}).hosts == ("127.0.0.1",)


def test_one_that_leads_to_nobody_or_to_a_stranger_is_passed_over():
    with socket.create_server(("127.0.0.2", 0)) as stranger:
        port = stranger.getsockname()[1]
        with socket.create_server(("127.0.0.3", port)) as broker:

            def answer(listener, message):
                sock, _ = listener.accept()
                with sock:
                    sock.recv(4096)
                    sock.sendall(message)
                    sock.recv(1)

            refused = json.dumps({"type": "refused", "reason": "the broker itself"}).encode()
            said = {
                stranger: b"HTTP/1.1 400 Bad Request\r\n\r\n",
                broker: b"Content-Length: %d\r\n\r\n" % len(refused) + refused,
            }
            threads = [threading.Thread(target=answer, args=each) for each in said.items()]
            for thread in threads:
                thread.start()
            address = BrokerAddress("127.0.0.4", port, "t", also=("127.0.0.2", "127.0.0.3"))
            with pytest.raises(WireError, match="the broker itself"):
                dial(address, kind="agent", token="t", about={}, timeout_s=5)
            for thread in threads:
                thread.join()


def test_of_several_failures_the_first_is_told():
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        dial(BrokerAddress("127.0.0.4", port, "t", also=("999.0.0.0",)), kind="agent", token="t", about={})
