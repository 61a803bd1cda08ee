"""What can be read in a script without running it: its syntax, its placeholders, and in need its commands."""

import re
import shlex
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rldbg.core import UsageError
from rldbg.launch.command_line import is_interpreter
from rldbg.launch.dry_run.calls import ShellCall
from rldbg.launch.known_launchers import peel

# A name in braces is left to the user where it is a whole word; inside of one it is a template of the program's own.
_PLACEHOLDER = re.compile(
    r"<[A-Za-z][A-Za-z0-9_ -]*>|(?<![^\s='\"])\{ ?[a-z_]+ ?\}(?![^\s'\"])"
    r"|(?:/path/to|\bPATH/TO)/[\w./-]*|YOUR_[A-Z_]+|your[-_][a-z_-]+"
)
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """A command line of the script with its continuation lines joined, and the number of its first line."""

    number: int
    text: str
    last: int = 0
    """The number of its last line."""


def check_syntax(script: Path, shell: str) -> None:
    """Checks the syntax with the shell itself, without running anything."""
    try:
        result = subprocess.run(
            [shell, "-n", str(script)], capture_output=True, text=True, timeout=10, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return
    if result.returncode == 0:
        return
    message = next((line for line in result.stderr.splitlines() if line.strip()), "it cannot be parsed")
    placeholder = re.search(r"<[A-Za-z][A-Za-z0-9_ -]*>", script.read_text(encoding="utf-8", errors="replace"))
    hint = (
        f"fill in its placeholders first, {placeholder[0]} for example"
        if placeholder
        else f"fix the script; `{shell} -n {script}` shows the error"
    )
    raise UsageError(f"{shell} cannot read the script: {message}", hint)


def read_text(file: str) -> str:
    """A script's text; empty when it cannot be read here."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace") if file else ""
    except OSError:
        return ""


def logical_lines(text: str) -> list[ScriptLine]:
    """Lines with continuations joined and comments and here-documents left out."""
    found: list[ScriptLine] = []
    joined, start, heredoc = "", 0, ""
    for number, raw in enumerate(text.splitlines(), start=1):
        if heredoc:
            heredoc = "" if raw.strip() == heredoc else heredoc
            continue
        stripped = raw.strip()
        if stripped.startswith("#") and (joined or not stripped.startswith("#!")):
            continue
        start = start if joined else number
        if raw.rstrip().endswith("\\"):
            joined += raw.rstrip()[:-1] + " "
            continue
        joined += raw
        if joined.strip() and not joined.strip().startswith("#"):
            found.append(ScriptLine(start, joined.strip(), number))
        match = _HEREDOC.search(joined)
        heredoc, joined = (match[1] if match else ""), ""
    return found


def first_line(file: str, number: int) -> int:
    """Where the command begins that has a line of this number: a shell may tell of a later one."""
    return next((line.number for line in _lines_of(read_text(file)) if line.number <= number <= line.last), number)


@lru_cache(maxsize=16)
def _lines_of(text: str) -> list[ScriptLine]:
    return logical_lines(text)


def read_commands(script: Path) -> list[ShellCall]:
    """The commands of a script as they are written, variables unexpanded: all that is known where nothing may run."""
    calls = []
    for line in logical_lines(script.read_text(encoding="utf-8", errors="replace")):
        try:
            words = shlex.split(line.text, comments=True)
        except ValueError:
            continue
        start = next((at for at, word in enumerate(words) if is_interpreter(word) or peel(words[at:])), None)
        before = words[:start]
        if start is None or "read" in before or ("for" in before and "do" not in before):
            continue  # `while read -r python count`, `for name in model python`
        end = next(
            (
                at
                for at, word in enumerate(words)
                if at > start and word in ("|", "||", "&&", ";", "&", ">", "2>&1", "&>")
            ),
            len(words),
        )
        calls.append(
            ShellCall(tuple(words[start:end]), str(Path.cwd()), str(script), line.number, id=f"{line.number:08d}")
        )
    return calls


def placeholders(script: Path) -> list[ScriptLine]:
    """Places that the author left for the user to fill in."""
    found = []
    for line in logical_lines(script.read_text(encoding="utf-8", errors="replace")):
        match = _PLACEHOLDER.search(line.text)
        if match:
            found.append(ScriptLine(line.number, match[0]))
    return found
