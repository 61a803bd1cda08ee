"""Who is behind a loopback connection: proved while both ends are open, else unknown, never root by mistake."""

import contextlib
import os
import socket
import struct
import subprocess
import sys

import pytest

from rldbg.agent import is_trusted, owner_of_peer

NOBODY = 65534


@contextlib.contextmanager
def _connected(connect=("127.0.0.1",), family=socket.AF_INET, source=None):
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(family) as peer:
        if source is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            peer.bind(source)
        peer.connect((connect[0], listener.getsockname()[1]))
        accepted, _ = listener.accept()
        with accepted:
            yield peer, accepted


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")])
def test_an_open_connection_is_its_users(family, address):
    with _connected((address,), family) as (_, accepted):
        assert owner_of_peer(accepted) == os.getuid()


def test_another_loopback_address_is_found_by_its_own_row():
    with _connected(source=("127.0.0.9", 0)) as (_, accepted):
        assert accepted.getpeername()[0] == "127.0.0.9" and owner_of_peer(accepted) == os.getuid()


def _close(peer):
    peer.close()


def _reset(peer):
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def _close_with_unsent_data(peer):
    """Our end does not learn that it was closed: its buffer is full."""
    peer.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            peer.send(b"x" * 65536)
    peer.close()


@pytest.mark.parametrize("leave", [_close, _reset, _close_with_unsent_data, lambda peer: peer.shutdown(socket.SHUT_WR)])
def test_a_closed_connection_is_nobodys(leave):
    """The kernel lists a socket that its process has closed with user 0."""
    with _connected() as (peer, accepted):
        peer.sendall(b"a request")
        leave(peer)
        assert owner_of_peer(accepted) is None and not is_trusted(owner_of_peer(accepted))


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which root alone can")
def test_another_users_connection_is_not_taken_for_ours_of_the_same_port():
    """Its source port is that of one of ours, on another loopback address."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as ours:
        port = listener.getsockname()[1]
        ours.connect(("127.0.0.1", port))
        first, _ = listener.accept()
        theirs = (
            "import os, socket, sys; os.setuid(int(sys.argv[3]));"
            "s = socket.socket(); s.bind(('127.0.0.9', int(sys.argv[2])));"
            "s.connect(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
        )
        arguments = [sys.executable, "-S", "-c", theirs, str(port), str(ours.getsockname()[1])]
        with subprocess.Popen([*arguments, str(NOBODY)], stdin=subprocess.PIPE) as other:
            second, _ = listener.accept()
            with first, second:
                assert (owner_of_peer(first), owner_of_peer(second)) == (0, NOBODY)
            other.stdin.close()
