"""The lines of a file on which a process can stop, and where it stops for one on which it cannot.

Debuggers move a breakpoint from a line without code up to the line before, which has often been executed by then: the
`def` line above a docstring, the last import above a comment. The user means what follows.
"""

import ast
from collections.abc import Iterator
from types import CodeType


def lines_with_code(source: bytes, file: str = "") -> set[int]:
    """Empty when it is not Python."""
    try:
        code = compile(source, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return {line for each in _nested(code) for _, _, line in each.co_lines() if line}


def line_to_stop_at(source: bytes, line: int) -> int:
    """The line itself if it has code or is part of a statement, else the next one with code in its function, class or
    module; the line itself also where none follows there: the debugger then takes one before."""
    code = lines_with_code(source)
    if line in code or not code:
        return line
    tree = ast.parse(source)
    scope = _scope(tree, line)
    if any(each.lineno <= line <= _end(each) and each.lineno in code for each in _plain_statements(scope)):
        return line
    return next((each for each in sorted(code) if each > line and _scope(tree, each) is scope), line)


_Scope = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _scope(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function or class around a line; the line of its `def` is part of what defines it."""
    found: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, _Scope) and node.lineno < line <= _end(node):
            found = node
    return found


def _plain_statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """Those that have no statements in them, with all their lines."""
    return (each for each in ast.walk(scope) if isinstance(each, ast.stmt) and not hasattr(each, "body"))


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
