"""Commands run here or on another host through the system's ssh, which knows the user's keys, hosts and jumps."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import join

from rldbg.core import PrerequisiteError, UnreachableError

_SSH_FAILED = 255
_HARMLESS = ("Warning: Permanently added", "bind [::1]", "Pseudo-terminal will not be allocated")


@dataclass(frozen=True, slots=True)
class Host:
    """This machine when `name` is empty, else one that ssh reaches."""

    ssh: tuple[str, ...] = ("ssh",)
    name: str = ""
    jump: str = ""

    def through(self, name: str) -> "Host":
        """A host further on: reached directly from here, or with this one as the jump."""
        return Host(self.ssh, name, ",".join(part for part in (self.jump, self.name) if part))

    def words(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` there."""
        if not self.name:
            return list(argv)
        jump = ["-J", self.jump] if self.jump else []
        return [*self.ssh, "-o", "ConnectTimeout=10", *jump, self.name, join(argv)]

    def run(self, argv: Sequence[str], timeout_s: float = 30.0) -> str:
        """What the command printed. A host that cannot be reached is an error; a command that fails is too."""
        words = self.words(argv)
        try:
            result = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                errors="replace",
            )
        except FileNotFoundError:
            raise PrerequisiteError(f"{words[0]} is not installed on this machine", f"install {words[0]}") from None
        except subprocess.TimeoutExpired:
            raise UnreachableError(f"{self.name or 'this machine'} did not answer within {timeout_s:g} s") from None
        if result.returncode == 0:
            return result.stdout
        said = last_words(result.stderr) or f"exit code {result.returncode}"
        if self.name and result.returncode == _SSH_FAILED:
            raise UnreachableError(f"ssh to {self.name} failed: {said}", f"try it by hand: {join(words[:-1])}")
        raise CommandFailed(f"{argv[0]}: {said}")

    def try_run(self, argv: Sequence[str]) -> str:
        """What the command printed; empty where it fails or the host cannot be reached."""
        try:
            return self.run(argv)
        except (UnreachableError, PrerequisiteError):
            return ""


class CommandFailed(UnreachableError):
    """A command ran where it should and did not succeed."""


def last_words(stderr: str) -> str:
    """The last line of what a command complained about, without ssh's harmless remarks."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not is_harmless(line)]
    return lines[-1] if lines else ""


def is_harmless(line: str) -> bool:
    return line.strip().startswith(_HARMLESS)
