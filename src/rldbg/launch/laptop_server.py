"""The server of `rldbg run --laptop`, managed by a keeper process that stops it when the run has ended, even if the run
was killed: the keeper's standard input is a pipe that only the run holds open. The keeper has its own session, so that
Ctrl-C does not reach it first.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rldbg.core import Environment, PrerequisiteError

_NAME = "laptop"
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")


@contextmanager
def laptop_server(model: Path, folder: Path) -> Iterator[str]:
    """The address of a server that has the model and lives as long as the block, or this process."""
    command = [sys.executable, "-m", __name__, str(model), str(folder)]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with keeper:
        assert keeper.stdout is not None
        answer = json.loads(keeper.stdout.readline() or '{"problem": "it ended while it started"}')
        if "problem" in answer:
            raise PrerequisiteError(f"the server of --laptop failed: {answer['problem']}", "see rldbg serve ls")
        yield answer["address"]


def _serve(*arguments: str, folder: str) -> str:
    command = [sys.executable, "-m", "rldbg", "serve", *arguments]
    home = {"RLDBG_HOME": folder}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=Environment().everything() | home
    )
    if done.returncode:
        raise PrerequisiteError(((done.stderr or done.stdout).strip().splitlines() or ["no output"])[-1])
    return done.stdout


def main(model: str, folder: str) -> None:
    """The keeper: prints the server's address, waits for the end of the run, and stops the server."""
    try:
        started = _serve("up", "--model", model, "--name", _NAME, "--port", "0", "--json", folder=folder)
        found = _ADDRESS.search(started)
        answer = {"address": found.group(0)} if found else {"problem": f"it did not report its address: {started}"}
    except PrerequisiteError as error:
        answer = {"problem": str(error)}
    try:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        if "address" in answer:
            _serve("down", _NAME, folder=folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
