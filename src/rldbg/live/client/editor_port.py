"""A local port that VS Code, or any editor that speaks the debug adapter protocol, can attach to.

The port listens on loopback and carries one editor at a time to the broker, where the session lives: closing the editor
leaves the process stopped, and the next editor finds it there.
"""

import contextlib
import json
import os
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rldbg.agent import Connection
from rldbg.core import UsageError
from rldbg.live.client.broker_client import connect


class EditorPort:
    """Listens for editors until closed."""

    def __init__(self, run: Path, who: str, port: int = 0) -> None:
        self._run = run
        self._who = who
        # Refused here, before the user types the port into an editor, when the process cannot be debugged.
        self._next: Connection | None = self._dial()
        self.facts: dict[str, Any] = self._next.about
        try:
            self._listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            self._next.close()
            raise UsageError(
                f"cannot listen on port {port}: {error.strerror}", "omit --port to get a free one"
            ) from error
        self.port: int = self._listener.getsockname()[1]

    def serve(self, said: Callable[[str], None]) -> None:
        """Carries editors, one after the other, until interrupted."""
        with self._listener:
            while True:
                editor, _ = self._listener.accept()
                said("editor attached")
                with editor:
                    self._carry(editor)
                said("editor detached; the process is unchanged")

    def _dial(self) -> Connection:
        return connect(self._run, "editor", who=self._who)

    def _carry(self, editor: socket.socket) -> None:
        channel, self._next = self._next or self._dial(), None
        editor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            if rest := channel.leftover():
                editor.sendall(rest)
            _pump(editor, channel.sock)
        channel.close()


def _pump(one: socket.socket, other: socket.socket) -> None:
    poll = select.poll()
    routes = {one.fileno(): (one, other), other.fileno(): (other, one)}
    for descriptor in routes:
        poll.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            source, target = routes[descriptor]
            data = source.recv(65536)
            if not data:
                return
            target.sendall(data)


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
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
