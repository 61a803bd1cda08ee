"""Requests to a server that answers, resets, or is not there."""

import contextlib
import socket
import struct
import threading

import pytest

from rldbg.core import NoAnswerError, http_request

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextlib.contextmanager
def server(*answers):
    """Gives each connection the next answer, or a reset for None; yields its URL and the requests it got."""
    got = []

    def serve():
        for answer in answers:
            try:
                connection, _ = listening.accept()
            except OSError:  # closed: fewer requests came than there are answers
                return
            with connection:
                got.append(connection.recv(1 << 16).decode())
                if answer is None:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/place", got


def test_a_get_is_sent_again_when_the_connection_breaks():
    with server(None, OK) as (url, got):
        assert http_request("GET", url, timeout_s=10).json() == {}
    assert len(got) == 2


def test_a_get_is_sent_twice_at_most():
    with server(None, None, OK) as (url, got):
        with pytest.raises(NoAnswerError):
            http_request("GET", url, timeout_s=10)
        assert len(got) == 2


def test_a_post_is_sent_once():
    with server(None, OK) as (url, got):
        with pytest.raises(NoAnswerError):
            http_request("POST", url, timeout_s=10, content=b"{}")
        assert len(got) == 1


def test_a_token_goes_with_the_request_and_a_proxy_of_the_environment_is_not_used(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with server(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n") as (url, got):
        answer = http_request("PUT", url, timeout_s=10, content=b"x", headers={"X-Own": "1"}, token="t0ken")
    assert answer.status_code == 403 and not answer.is_success
    assert got[0].startswith("PUT /place ") and "X-Own: 1" in got[0] and "Authorization: Bearer t0ken" in got[0]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://127.0.0.1:999999/", "nowhere", "http://[/", "ftp://x/"])
def test_no_answer_is_one_kind_of_error(url):
    with pytest.raises(NoAnswerError, match=r"."):
        http_request("GET", url, timeout_s=10)


def test_a_server_that_says_nothing_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NoAnswerError, match="Timeout"):
        http_request("GET", f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_s=0.2)
