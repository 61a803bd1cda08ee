"""Breakpoints as users name them, and why one may never be hit, as far as the source file on this machine tells."""

from pathlib import Path
from typing import Any

from rldbg.agent import line_to_stop_at, lines_with_code
from rldbg.core import UsageError


def break_place(text: str) -> tuple[str, int]:
    """FILE:LINE as the two, for a breakpoint: a line that the file does not have is refused, if the file is here."""
    file, line = source_place(text)
    refuse_what_is_no_file(file)
    source = _source(Path(file))
    if source is not None:
        refuse_beyond_end(source, file, line)
    return file, line


def source_place(text: str) -> tuple[str, int]:
    """FILE:LINE as the two. A file is meant from here, whatever the working directory of its process; a module is
    named without a path."""
    file, _, line = text.strip().rpartition(":")
    if not file or not line.isdecimal() or int(line) < 1:
        raise UsageError(f"invalid place: {text[:80]!r} (expected FILE:LINE)", "for example train.py:88")
    is_module = "/" not in file and not file.endswith(".py") and not Path(file).exists()
    return file if is_module else str(Path(file).absolute()), int(line)


def refuse_what_is_no_file(file: str) -> None:
    """Raises UsageError for a folder or a device of this machine."""
    path = Path(file)
    if "/" in file and path.exists() and not path.is_file():
        what = "folder" if path.is_dir() else "device"
        raise UsageError(f"{file} is a {what}, not a file", "name a Python file: FILE:LINE")


def refuse_beyond_end(source: bytes, file: str, line: int) -> None:
    """Raises UsageError for a line that the file does not have: the debugger would take its last one."""
    total = len(source.splitlines())
    if line > total:
        code = lines_with_code(source, file)
        last = f"; its last line with code is {max(code)}" if code else ""
        raise UsageError(
            f"{file} has no line {line}: it has {total} line{'s' * (total != 1)}{last}", "give one of its lines"
        )


def breakpoint_warning(made: dict[str, Any]) -> str:
    """`made` is a breakpoint as the broker describes it; empty when it looks right."""
    if not made["file"]:
        return ""
    source = _source(Path(made["file"]))
    if source is None:
        return _not_here(made)
    line, stops_at = made["line"], made["stops_at"]
    if not stops_at and line not in (lines_with_code(source) or {line}):
        # No process has loaded it yet.
        stops_at = [_nearest(source, line)]
    if stops_at:
        before = ", which is executed before it" if stops_at[0] < line else ""
        return f"line {line} has no code: processes stop at line {stops_at[0]}{before}"
    unset = unset_in(made)
    return f"not set yet in {', '.join(unset)}: the file is not loaded there" if unset else ""


def unset_in(made: dict[str, Any]) -> list[str]:
    return [who for who, ok in made["set_in"].items() if not ok]


def _not_here(made: dict[str, Any]) -> str:
    """Of a file that this machine does not have, or of a module."""
    file, unset = made["file"], unset_in(made)
    is_file = "/" in file
    missing = f"no {'file' if is_file else 'module'} {file} here"
    if unset:
        return f"{missing}, nor in {', '.join(unset)} yet: the breakpoint is set once it is loaded"
    elsewhere = [path for path in made["found_at"] if path != file]
    if is_file and elsewhere:
        return f"{missing}: it is set in {', '.join(elsewhere)}, which is loaded or in the working directory there"
    return f"{missing}: the breakpoint is set in processes that load it" if not made["set_in"] else ""


def _nearest(source: bytes, line: int) -> int:
    """Where debuggers put it."""
    wanted, code = line_to_stop_at(source, line), lines_with_code(source)
    return wanted if wanted in code else max((each for each in code if each < wanted), default=min(code))


def _source(path: Path) -> bytes | None:
    """None when the file is not here."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None
