"""Which table a function takes an object out of, and by which key: `future = self.pending.pop(reply.id, None)`."""

import ast
from collections.abc import Iterator

from ..calls.looking import shared_key
from ..code.origins import given_to
from ..code.resolving import plain_text, resolve
from ..reading.kernel import Facts
from ..reading.objects import Frame
from .kept import entries_of

_TAKING = frozenset({"pop", "get"})
_SHOWN, _MOST_KEYS, _MOST_OBJECTS = 60, 5, 32


def lookup(expression: ast.expr, body: ast.AST, place: Frame) -> Facts:
    """The table that an expression is looked up in, how the `key` is written, its value for the `last` item, the keys
    and objects that are there, and how many. The variable that it `is` may be None. Empty where it is not looked up."""
    root = _root(expression)
    given = list(given_to(root.id, body)) if isinstance(root, ast.Name) else []
    for taken in (*_parts(expression), *given):
        table, key = _table_and_key(taken)
        if table is None or key is None:
            continue
        found, value = resolve(table, place), resolve(key, place)
        entries = list(entries_of(found)) if found is not None and found.pairs() else []
        objects = [each for _, each in entries[:_MOST_OBJECTS]]
        return {
            "table": ast.unparse(table)[:_SHOWN],
            "key": ast.unparse(key)[:_SHOWN],
            "last": (plain_text(value) if value is not None else None) or "",
            "there": [each for each, _ in entries[:_MOST_KEYS]],
            "objects": [key for each in objects for key in (f"{each.address:#x}", shared_key(each)) if key],
            "size": found.length() if found is not None else None,
            "is": root.id if isinstance(root, ast.Name) and taken in given else "",
        }
    return {}


def _table_and_key(taken: ast.expr) -> tuple[ast.expr | None, ast.expr | None]:
    if isinstance(taken, ast.Subscript) and not isinstance(taken.slice, ast.Constant | ast.Slice):
        return taken.value, taken.slice
    called = taken.func if isinstance(taken, ast.Call) and taken.args else None
    if isinstance(called, ast.Attribute) and called.attr in _TAKING and isinstance(taken, ast.Call):
        constant = isinstance(taken.args[0], ast.Constant)
        return (None, None) if constant else (called.value, taken.args[0])
    return None, None


def _parts(expression: ast.expr) -> Iterator[ast.expr]:
    """The expression, and what it is an attribute or element of."""
    while True:
        yield expression
        if not isinstance(expression, ast.Attribute | ast.Subscript):
            return
        expression = expression.value


def _root(expression: ast.expr) -> ast.expr:
    return list(_parts(expression))[-1]
