"""Where the tour plays: a folder, in which commands are shown and run as the user would type them."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rldbg.core import Environment, ExitCode, RldbgError

_READY_S = 120.0
_END_S = 60.0
_JOB_LINES = 6


class Visited(NamedTuple):
    """A command that was run, and how it ended."""

    stop: str
    command: str
    exit_code: int
    seconds: float


@dataclass
class TourStage:
    """Runs `rldbg` commands in a folder, and remembers them."""

    folder: Path
    say: Callable[[str], None]
    quiet: bool = False
    visited: list[Visited] = field(default_factory=list)
    stop: str = ""

    def rldbg(self, *arguments: str, expect: tuple[int, ...] = (ExitCode.OK,), verdict: str = "") -> None:
        """Shows a command and runs it. Of a job's output, what comes before its `verdict` is shortened."""
        shown, started = shlex.join(("rldbg", *arguments)), time.monotonic()
        self.say(f"\n$ {shown}")
        done = self._call(arguments, capture=self.quiet or bool(verdict))
        if verdict:
            self.say(_shortened(done.stdout, verdict))
        self.visited.append(Visited(self.stop, shown, done.returncode, round(time.monotonic() - started, 1)))
        if done.returncode not in expect:
            said = f"`{shown}` ended with exit code {done.returncode}\n{done.stdout or ''}"
            raise RldbgError(said.rstrip(), f"run it in {self.folder}")

    @contextmanager
    def background(self, *arguments: str) -> Iterator[None]:
        """Runs a command while the block runs, then waits for its end and prints its output."""
        shown, started = shlex.join(("rldbg", *arguments)), time.monotonic()
        self.say(f"\n$ {shown} &")
        output = self.folder / f"{self.stop}.log"
        with output.open("wb") as file:
            process = subprocess.Popen(
                _command(arguments), cwd=self.folder, env=_environment(), stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            yield
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise RldbgError(f"`{shown}` is still running after {_END_S:.0f} s", f"read {output}") from None
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(_END_S)
        self.visited.append(Visited(self.stop, shown, process.returncode, round(time.monotonic() - started, 1)))
        self.say(_own_lines(output.read_text(errors="replace")))

    def wait_for(self, *arguments: str, until: Callable[[str], bool]) -> None:
        """Asks until the answer, as JSON text, is the one that the next command is meant to show."""
        deadline = time.monotonic() + _READY_S
        while not until(answer := self._call((*arguments, "--json", "--quiet"), capture=True).stdout):
            if time.monotonic() > deadline:
                shown = shlex.join(("rldbg", *arguments))
                raise RldbgError(f"`{shown}` did not show what was expected: {answer}", "try again")
            time.sleep(0.3)

    def _call(self, arguments: tuple[str, ...], *, capture: bool) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            _command(arguments), cwd=self.folder, env=_environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if capture else None, stderr=subprocess.STDOUT if capture else None, text=True,
        )  # fmt: skip


def stopped_ranks(answer: str) -> int:
    """How many processes of `rldbg ps --json` are stopped."""
    try:
        return sum(process["state"] == "stopped" for process in json.loads(answer)["processes"])
    except (ValueError, KeyError):
        return 0


def _command(arguments: tuple[str, ...]) -> list[str]:
    sys.stdout.flush()
    return [sys.executable, "-m", "rldbg", *arguments]


def _environment() -> dict[str, str]:
    """Runs of the tour lie in its own folder, and find the programs that came with this interpreter."""
    kept = {name: value for name, value in Environment().everything().items() if not name.startswith("RLDBG_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    # What torchrun would set anyway, with a warning.
    return kept | {"PATH": path, "OMP_NUM_THREADS": "1"}


def _shortened(output: str, verdict: str) -> str:
    """The first lines of a job's output, how many more there are, and all lines from the verdict on."""
    lines = _own_lines(output).splitlines()
    at = next((number for number, line in enumerate(lines) if line.startswith(verdict)), 0)
    left_out = at - _JOB_LINES
    if left_out <= 0:
        return "\n".join(lines)
    return "\n".join((*lines[:_JOB_LINES], f"[... {left_out} more lines of the job's output]", *lines[at:]))


def _own_lines(output: str) -> str:
    """What the command itself printed; rldbg's notes on the run are the same each time."""
    return "\n".join(line for line in output.splitlines() if not line.startswith("rldbg: ") and "Warning" not in line)
