"""Expressions of users over a step's measures: `reward < 0.1 and length > 2 * usual(length)`.

Names are measures or logged metrics, with every character that no name may have written as `_`. Nothing else can be
called or reached.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from rldbg.core import UsageError

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "max": max,
    "min": min,
    "isnan": math.isnan,
    "isfinite": math.isfinite,
}
# Fewest and most arguments.
_TAKES = {"abs": (1, 1), "isnan": (1, 1), "isfinite": (1, 1), "max": (2, math.inf), "min": (2, math.inf)}
_HINT = "for example --when 'reward < 0.1' or --when 'length > 2 * usual(length)'; docs/watch.md lists the measures"


class CannotEvaluate(Exception):
    """Why an expression has no value: a division by zero, a number that is too large."""


class WatchExpression:
    """A parsed expression. One that names something the step does not have is not true; `holds` raises CannotEvaluate
    where its arithmetic fails."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._tree = ast.parse(text, mode="eval").body
        except SyntaxError as error:
            raise UsageError(f"invalid expression: {text!r} ({error.msg})", _HINT) from error
        self.names = tuple(dict.fromkeys(_names(self._tree, text)))
        _refuse_errors_of_constants(self._tree, text)

    def holds(self, values: Mapping[str, float], usual: Mapping[str, float]) -> bool:
        known, before = identifiers(values), identifiers(usual)
        if not all(name in known for name in self.names):
            return False
        try:
            return bool(_value(self._tree, known, before))
        except KeyError:  # usual() of a name that no step had before
            return False
        except ArithmeticError as error:
            raise CannotEvaluate(str(error)) from error


def identifiers(values: Mapping[str, float]) -> dict[str, float]:
    """The values by the names that expressions have for them."""
    return {re.sub(r"\W", "_", name): value for name, value in values.items()}


def _names(node: ast.AST, text: str) -> list[str]:
    """The names it reads; refuses everything that is not arithmetic, comparison or a known function."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return []
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.BoolOp):
        parts: list[ast.AST] = list(node.values)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        parts = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        parts = [node.operand]
    elif isinstance(node, ast.Compare) and all(type(each) in _OPERATORS for each in node.ops):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "usual" and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
            return [node.args[0].id]
        if node.func.id not in _FUNCTIONS:
            raise UsageError(f"unknown function in {text!r}: {node.func.id}", _HINT)
        fewest, most = _TAKES[node.func.id]
        if not fewest <= len(node.args) <= most:
            raise UsageError(f"wrong number of arguments in {text!r}: {node.func.id} of {len(node.args)}", _HINT)
        parts = list(node.args)
    else:
        raise UsageError(f"invalid expression: {text!r} ({type(node).__name__} is not supported)", _HINT)
    return [name for part in parts for name in _names(part, text)]


def _refuse_errors_of_constants(tree: ast.AST, text: str) -> None:
    """A part without names fails at every step, or at none."""
    for part in ast.walk(tree):
        if isinstance(part, ast.expr) and not _names(part, text):
            try:
                _value(part, {}, {})
            except ArithmeticError as error:
                raise UsageError(f"invalid expression: {text!r} ({ast.unparse(part)}: {error})", _HINT) from error


def _value(node: ast.AST, known: Mapping[str, float], usual: Mapping[str, float]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return known[node.id]
        case ast.BoolOp():
            every = all if isinstance(node.op, ast.And) else any
            return every(_value(part, known, usual) for part in node.values)
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_value(node.left, known, usual), _value(node.right, known, usual))
        case ast.UnaryOp():
            return _OPERATORS[type(node.op)](_value(node.operand, known, usual))
        case ast.Compare():
            numbers = [_value(part, known, usual) for part in (node.left, *node.comparators)]
            pairs = zip(node.ops, numbers, numbers[1:], strict=False)
            return all(_OPERATORS[type(each)](a, b) for each, a, b in pairs)
        case ast.Call(func=ast.Name(id="usual"), args=[ast.Name(id=name)]):
            return usual[name]
        case ast.Call(func=ast.Name(id=function)):
            return _FUNCTIONS[function](*(_value(part, known, usual) for part in node.args))
    raise AssertionError(ast.dump(node))
