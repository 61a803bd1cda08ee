"""The commands that a dry run saw, read from the notes that its stubs left (see shell/stub.sh)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PREFIX = "RLDBG_DRY"
"""Variables that the dry run adds to the script's environment; they are not part of what a call is given."""


@dataclass(frozen=True, slots=True)
class ShellCall:
    """One command that the script started: the exact words, where from, and in which environment."""

    argv: tuple[str, ...]
    cwd: str
    file: str = ""
    line: int = 0
    via: str = ""
    """The call of the launcher that would start this one; empty when the script starts it itself."""
    id: str = ""
    pipefail: bool = False
    """Whether the shell would notice that this command failed in front of a `|`."""
    there: frozenset[str] = frozenset()
    """Its words that were programs in the sandbox: the script may have written them itself."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_calls(folder: Path) -> list[ShellCall]:
    """All calls, in the order in which they were made. A note that was not finished is not there."""
    notes = (file for file in folder.iterdir() if file.suffix != ".part")
    return [_read(file) for file in sorted(notes, key=lambda file: file.name)]


def _read(file: Path) -> ShellCall:
    # Surrogates represent bytes that are not UTF-8, as in sys.argv.
    words = file.read_bytes().decode("utf-8", "surrogateescape").split("\0")
    place, options, via, cwd, count = words[:5]
    argv, variables = words[5 : 5 + int(count)], words[5 + int(count) :]
    script, _, line = place.rpartition(":")
    pairs = [variable.partition("=") for variable in variables if "=" in variable]
    there = next((value for name, _, value in pairs if name == f"{PREFIX}_THERE"), "")
    return ShellCall(
        argv=tuple(argv),
        cwd=cwd,
        file=script,
        line=int(line) if line.isdigit() else 0,
        via=via,
        id=file.name,
        there=frozenset(there.splitlines()),
        pipefail="pipefail" in options.split(":"),
        environment={name: value for name, _, value in pairs if not name.startswith(PREFIX)},
    )
