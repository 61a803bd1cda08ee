"""Filter expressions over columns: `reward > 0.5 and length < 200 and "g3" in group`.

A small part of Python's grammar, evaluated on whole columns; nothing in an expression can call or reach anything else.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rldbg.core import UsageError, did_you_mean


def _times(a: Any, b: Any) -> Any:
    """Multiplies numbers only: Python would repeat a string."""
    if any(np.asarray(each).dtype.kind in "OU" for each in (a, b)):
        raise TypeError
    return a * b


_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: _times, ast.Div: np.divide, ast.Mod: np.mod,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "isnan": lambda values: np.isnan(np.asarray(values, float)),
}
_HINT = 'for example: reward > 0.5 and length < 200 and "g3" in group'
_LONGEST = 2000


def matching(expression: str, columns: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """Which rows fulfil the expression; all of them for an empty one. UsageError says what is wrong with it."""
    if not expression.strip():
        return np.ones(count, bool)
    if len(expression) > _LONGEST:
        raise UsageError(f"the filter has more than {_LONGEST:,} characters", "narrow it")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError as error:
        raise _unreadable(expression.strip(), error) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"invalid filter: {expression[:80]!r}", _HINT) from error
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(_value(tree.body, columns))
    except TypeError as error:
        raise UsageError("invalid filter: a string and a number cannot be compared or added", _HINT) from error
    except (ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"invalid filter: {error}", _HINT) from error
    return np.broadcast_to(result.astype(bool), (count,))


def _unreadable(text: str, error: SyntaxError) -> UsageError:
    """Where reading stopped, and what to write instead of what other languages have."""
    for found, instead in (("&&", "and"), ("||", "or"), ("=", "==")):
        if re.search(rf"(?<![=<>!&|]){re.escape(found)}(?![=&|])", text):
            return UsageError(f"invalid filter: {found} is not known here", f"use {instead}; {_HINT}")
    if any(word in error.msg for word in ("never closed", "unmatched", "unterminated")):
        return UsageError(f"invalid filter: {error.msg}", _HINT)
    rest = text[error.offset - 1 :][:30] if error.offset else ""
    return UsageError(f"invalid filter: cannot read {rest!r}" if rest else "invalid filter: it ends too early", _HINT)


def _value(node: ast.expr, columns: Mapping[str, np.ndarray]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return node.value
        case ast.Name(id=name):
            if name not in columns:
                raise UsageError(f"no column {name!r}", did_you_mean(name, columns, f"columns: {', '.join(columns)}"))
            return columns[name]
        case ast.BoolOp(op=op, values=values):
            parts = [np.asarray(_value(value, columns)).astype(bool) for value in values]
            combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
            result = parts[0]
            for part in parts[1:]:
                result = combine(result, part)
            return result
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return np.logical_not(np.asarray(_value(operand, columns)).astype(bool))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, columns)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_value(left, columns), _value(right, columns))
        case ast.Compare():
            return _compared(node, columns)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(argument, columns))
    raise UsageError(f"not part of a filter: {ast.unparse(node)[:60]}", _HINT)


def _compared(node: ast.Compare, columns: Mapping[str, np.ndarray]) -> Any:
    result: Any = True
    left = _value(node.left, columns)
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = _value(right_node, columns)
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(left, str) or not isinstance(right, np.ndarray):
                raise UsageError("`in` looks for a string in a column of strings", '"g3" in group')
            part = np.fromiter((left in str(text) for text in right), bool, len(right)) ^ isinstance(op, ast.NotIn)
        elif type(op) in _COMPARISONS:
            part = _COMPARISONS[type(op)](left, right)
        else:
            raise UsageError("not a comparison of a filter", _HINT)
        result = np.logical_and(result, part)
        left = right
    return result
