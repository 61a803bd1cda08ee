"""`rldbg serve` as a user types it, with a home of its own, so that no servers but a test's are seen or stopped."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

RLDBG = Path(sys.executable).with_name("rldbg")


class ServeShell:
    def __init__(self, home: Path, **variables: str) -> None:
        self.environment = os.environ | {"RLDBG_HOME": str(home)} | variables

    def run(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [RLDBG, "serve", *map(str, arguments)]
        ran = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=150)
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran

    def ask(self, *arguments: object, code: int = 0) -> dict:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def up(self, *arguments: object) -> dict:
        """The server that was started."""
        return self.ask("up", *arguments)["server"]

    def address(self, *arguments: object) -> str:
        """Where it answers."""
        return self.up(*arguments)["addresses"][0]


@contextmanager
def serving(home: Path, *arguments: object, variables: Mapping[str, str] | None = None) -> Iterator[dict]:
    """A server, stopped at the end."""
    shell = ServeShell(home, **(variables or {}))
    yield shell.up(*arguments)
    shell.run("down", "--all")
