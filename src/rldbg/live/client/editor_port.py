"""A local port that VS Code, or any editor that speaks the debug adapter protocol, can attach to.

The port listens on loopback and carries one editor at a time to the broker, where the session lives: closing the editor
leaves the process stopped, and the next editor finds it there. Editors cannot show the run's token; the kernel says
which user connects, and only the owner of this process, or root, is let through. Invariant: nothing that a connection
sent is passed on before its owner was proved twice, as it came and after it had sent something, so that what a closed
connection left behind is dropped.
"""

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rldbg.agent import Connection, is_trusted, owner_of_peer
from rldbg.core import IncompleteDataError, UnreachableError, UsageError, write_whole
from rldbg.live.client.broker_client import BrokerClient, connect

_LOOK_EVERY_S = 2.0
# Connections that have said nothing yet, or wait until another editor detaches.
_MOST_WAITING = 16


class EditorPort:
    """Listens for editors of this user until closed, or until the debugged process has ended."""

    def __init__(self, run: Path, who: str, port: int = 0, *, socket_path: Path | None = None) -> None:
        self._run = run
        self._socket_path = socket_path
        self._refused: set[int | None] = set()
        self._waiting: list[socket.socket] = []
        # Refused here, before the user types the port into an editor, when the process cannot be debugged.
        self._next: Connection | None = connect(run, "editor", who=who)
        self.facts: dict[str, Any] = self._next.about
        self._who = f"@{self.facts['pid']}"
        try:
            self._listener = _listen_at(socket_path) if socket_path else socket.create_server(("127.0.0.1", port))
        except OSError as error:
            self._next.close()
            raise UsageError(
                f"cannot listen at {socket_path or port}: {error.strerror or error}",
                "choose another path, of at most 107 bytes" if socket_path else "omit --port to get a free one",
            ) from error
        self.port: int = 0 if socket_path else self._listener.getsockname()[1]

    def serve(self, said: Callable[[str], None]) -> None:
        """Carries editors, one after the other, until interrupted or until the process has ended."""
        try:
            with self._listener, BrokerClient(self._run) as client:
                while self._is_there(client):
                    self._serve_for_a_while(said)
        finally:
            for waiting in self._waiting:
                waiting.close()
            if self._socket_path is not None:
                self._socket_path.unlink(missing_ok=True)
        said("the process has ended; no more editors can attach")

    def _serve_for_a_while(self, said: Callable[[str], None]) -> None:
        """Not one look at the process per connection: those of other users would keep the owner's editor waiting."""
        until = time.monotonic() + _LOOK_EVERY_S
        while (left_s := until - time.monotonic()) > 0:
            for ready in _readable([self._listener, *self._waiting], left_s):
                if ready is self._listener:
                    self._admit(said)
                elif ready in self._waiting:
                    # A connection that says nothing does not keep the others waiting.
                    self._waiting.remove(ready)
                    with ready:
                        self._meet(ready, said)

    def _is_there(self, client: BrokerClient) -> bool:
        try:
            client.request("select", who=self._who)
        except (IncompleteDataError, UnreachableError):
            return False
        return True

    def _admit(self, said: Callable[[str], None]) -> None:
        """Accepts one connection, if it is the user's; it is served once it says something."""
        try:
            editor, _ = self._listener.accept()
        except OSError:
            # It has left already, or too many files are open: neither ends the session of another.
            return
        user = owner_of_peer(editor)
        if not is_trusted(user):
            editor.close()
            if user not in self._refused:
                said(f"refused: {_whose(user)}")
            self._refused.add(user)
            return
        self._waiting.append(editor)
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.pop(0).close()

    def _meet(self, editor: socket.socket, said: Callable[[str], None]) -> None:
        if not is_trusted(owner_of_peer(editor)):
            # It has left, and what it sent is not acted upon.
            return
        said("editor attached")
        self._carry(editor, said)
        said("editor detached; the process is unchanged")

    def _carry(self, editor: socket.socket, said: Callable[[str], None]) -> None:
        channel, self._next = self._next or connect(self._run, "editor", who=self._who), None
        editor.settimeout(None)
        if editor.family != socket.AF_UNIX:
            editor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            if rest := channel.leftover():
                editor.sendall(rest)
            self._pump(editor, channel.sock, said)
        channel.close()

    def _pump(self, editor: socket.socket, broker: socket.socket, said: Callable[[str], None]) -> None:
        targets = {editor: broker, broker: editor}
        while True:
            for source in _readable([editor, broker, self._listener]):
                if source is self._listener:
                    before = len(self._waiting)
                    self._admit(said)
                    if len(self._waiting) > before:
                        said("another connection waits: one editor at a time is served, and one is attached")
                    continue
                data = source.recv(65536)
                if not data:
                    return
                targets[source].sendall(data)


def _readable(sockets: list[socket.socket], timeout_s: float | None = None) -> list[socket.socket]:
    poll = select.poll()
    by_descriptor = {each.fileno(): each for each in sockets}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[ready] for ready, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]


def _whose(user: int | None) -> str:
    return "connections that were closed at once" if user is None else f"connections of user {user}"


def _listen_at(path: Path) -> socket.socket:
    """A unix socket that only this user can connect to."""
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    listener.listen()
    return listener


def launch_configuration(who: str, port: int, remote_root: str) -> dict[str, Any]:
    """What VS Code needs in launch.json; the process's folder is mapped to the folder that is open in the editor."""
    configuration: dict[str, Any] = {
        "name": f"rldbg {who}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "justMyCode": False,
    }
    if remote_root:
        configuration["pathMappings"] = [{"localRoot": "${workspaceFolder}", "remoteRoot": remote_root}]
    return configuration


def write_launch_configuration(path: Path, configuration: dict[str, Any]) -> None:
    """Adds the configuration to a launch.json, in place of an earlier one of the same name; the rest stays."""
    body: dict[str, Any] = {"version": "0.2.0", "configurations": []}
    if path.exists():
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            others = [each for each in body.get("configurations", []) if each.get("name") != configuration["name"]]
        except (ValueError, AttributeError) as error:
            raise UsageError(
                f"{path} cannot be changed: it is not plain JSON ({error})",
                "it may hold comments: copy the printed configuration into it by hand",
            ) from error
        body["configurations"] = others
    body["configurations"].append(configuration)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(body, indent=2) + "\n")
