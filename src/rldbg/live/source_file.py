"""What a source file on this machine says about a line, before a process is asked."""

from collections.abc import Iterator
from pathlib import Path
from types import CodeType


def lines_with_code(path: Path) -> set[int] | None:
    """The lines on which something can stop; None when the file is not here, empty when it is no Python."""
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
