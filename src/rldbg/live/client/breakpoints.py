"""Breakpoints as users name them, and why one may never be hit, as far as the source file on this machine tells."""

from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from rldbg.core import UsageError


def break_place(text: str) -> tuple[str, int]:
    """FILE:LINE as the two. A file is meant from here, whatever the working directory of its process; a module is
    named without a path."""
    file, _, line = text.strip().rpartition(":")
    if not file or not line.isdigit():
        raise UsageError(f"invalid place: {text[:80]!r} (expected FILE:LINE)", "for example train.py:88")
    is_module = "/" not in file and not file.endswith(".py") and not Path(file).exists()
    return file if is_module else str(Path(file).absolute()), int(line)


def breakpoint_warning(made: dict[str, Any]) -> str:
    """`made` is a breakpoint as the broker describes it; empty when it looks right."""
    if not made["file"]:
        return ""
    unset = [who for who, ok in made["set_in"].items() if not ok]
    lines = _lines_with_code(Path(made["file"]))
    if lines is None and unset:
        what = "file" if "/" in made["file"] else "module"
        return f"no {what} {made['file']} here, nor in {', '.join(unset)} yet: the breakpoint is set once it is loaded"
    if made["stops_at"]:
        return f"line {made['line']} has no code: processes stop at line {made['stops_at'][0]}"
    if lines and made["line"] not in lines:
        nearest = min(lines, key=lambda line: abs(line - made["line"]))
        return f"line {made['line']} has no code; the nearest line with code is {nearest}"
    return f"not set yet in {', '.join(unset)}: the file is not loaded there" if unset else ""


def _lines_with_code(path: Path) -> set[int] | None:
    """The lines on which a breakpoint can stop; None when the file is not here, empty when it is not Python."""
    try:
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError:
        return None
    except (SyntaxError, ValueError):
        return set()
    return {line for each in _nested(code) for _, _, line in each.co_lines() if line}


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
