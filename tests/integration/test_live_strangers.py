"""Other users of the host, and connections that say nothing: they reach nothing and stand in nobody's way."""

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest
from live_job import PATIENCE_S, looping_job, until

from rldbg.agent import BrokerAddress, encode
from rldbg.agent.relay import Relay
from rldbg.live import BrokerClient

NOBODY = 65534
INITIALIZE = encode({"seq": 1, "type": "request", "command": "initialize", "arguments": {}})


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with looping_job(tmp_path_factory.mktemp("strangers")) as job:
        yield job


@contextlib.contextmanager
def _editors(job, *options):
    command = [sys.executable, "-m", "rldbg", "attach", "loop", "--json", "--run", str(job.run.path), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def _answer_to(address, *, user):
    """What a process of another user gets from a port: its first bytes, nothing when it was refused."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setuid(user)
            with socket.create_connection(address, timeout=PATIENCE_S) as sock:
                sock.sendall(INITIALIZE)
                os.write(writes, sock.recv(100))
        os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with open(reads, "rb") as pipe:
        return pipe.read()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_gets_no_answer_from_the_editors_port(job):
    with _editors(job, "--ide") as process:
        port = _port_of(process)
        # WHEN another user of the host connects THEN it gets nothing, and the owner is served
        assert [_answer_to(("127.0.0.1", port), user=NOBODY) for _ in range(3)] == [b""] * 3
        assert b"Content-Length" in _answer_to(("127.0.0.1", port), user=os.getuid())
        # AND it is said once, however often it tries
        process.terminate()
        assert process.stderr.read().count(f"refused: connections of user {NOBODY}") == 1


def _port_of(process):
    import json

    text = ""
    while True:
        text += process.stdout.readline()
        with contextlib.suppress(ValueError):
            return json.loads(text)["port"]


def test_an_editor_may_use_a_unix_socket_that_is_private(job, tmp_path):
    path = tmp_path / "editor.sock"
    with _editors(job, "--socket", str(path)):
        until(path.exists, "the socket")
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(30)
            sock.connect(str(path))
            sock.sendall(INITIALIZE)
            assert b"Content-Length" in sock.recv(100)


def test_a_unix_socket_with_too_long_a_path_is_an_error_that_says_so(job, tmp_path):
    done = job.rldbg("attach", "loop", "--socket", str(tmp_path / ("x" * 200)), check=False)
    assert done.returncode == 2 and "AF_UNIX path too long" in done.stderr and "107 bytes" in done.stderr


def test_the_editors_port_ends_with_the_process(tmp_path):
    with looping_job(tmp_path) as job, _editors(job, "--ide") as process:
        _port_of(process)
        job.write("stop", "")
        assert process.wait(60) == 0
        assert "has ended" in process.stderr.read()


def test_silent_connections_do_not_lock_clients_out(job):
    address = BrokerAddress.read(job.run.path)
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection((address.host, address.port), timeout=PATIENCE_S))
            for _ in range(300)
        ]
        # WHEN hundreds of connections say nothing THEN a client is served at once
        begin = time.monotonic()
        with BrokerClient(job.run.path) as client:
            assert client.request("ps")["processes"]
        assert time.monotonic() - begin < PATIENCE_S / 2 and len(silent) == 300


class _Channel:
    """Stands for the connection to the broker; nothing comes through it."""

    def __init__(self):
        self.sock, self._other = socket.socketpair()

    def leftover(self):
        return b""

    def close(self):
        self.sock.close()
        self._other.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_does_not_hold_up_a_debug_session():
    relay = Relay(_Channel(), number=1, ended=lambda: None, redial=lambda _: None, why_none=lambda _: "", timeout_s=20)
    relay.start()
    # WHEN another user is first at the port that pydevd connects to THEN it is dropped and pydevd is met
    got = []
    stranger = threading.Thread(target=lambda: got.append(_answer_to(relay.address, user=NOBODY)))
    stranger.start()
    stranger.join(30)
    assert got == [b""]
    with socket.create_connection(relay.address, timeout=PATIENCE_S) as pydevd:
        assert b"pydevdAuthorize" in pydevd.recv(200)
    relay.close()
