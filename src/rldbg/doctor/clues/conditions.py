"""The condition of an assertion that failed, with the values that its settings have in the log.

The condition is read, never run: what is evaluated are comparisons and arithmetic of numbers that the log states.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from rldbg.doctor.clues.logged_settings import LoggedSetting, LoggedSettings
from rldbg.doctor.logs.evidence import Failure

_ASSERT = re.compile(r"assert (?P<rest>.+)")
_MESSAGE = re.compile(r", ?(?:\(|\w{0,2}[\"'])")
_SETTINGS_OF = re.compile(r"(?:^|\.)(?:args|cfg|config|configs|conf|hparams|opts?|FLAGS|settings|params)\.[a-z_]")
"""How a program calls what holds its settings."""
_OF_LAYOUT = re.compile(
    r"(?i)world|rank|gpu|device|node|num_|_size$|parallel|(?:^|_|\.)[dtpce]p(?:$|_)|workers|engines"
)
"""What a rule on settings may compare them with that is none itself."""
_IS_RULE = (ast.Mod, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq)
_MATHS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARES: Mapping[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SHOWN = 160
_LOOKS = frozenset({"len", "isinstance", "issubclass", "hasattr", "getattr", "all", "any", "set", "max", "min", "sum"})
"""Functions that only look at what they are given."""


class Condition(NamedTuple):
    """What an assertion asked for, as it is written, and what is known of it."""

    text: str
    known: tuple[tuple[str, LoggedSetting], ...]
    """The names in it that are settings of the log."""
    holds: bool | None
    """Whether it is true with these; None where a name in it is not known."""
    is_of_settings: bool
    """Whether it compares what the program calls its settings."""

    sums: tuple[tuple[str, float], ...] = ()
    """The sides of its comparison that are no single name or number, as far as they are known."""

    def sentence(self, said: str) -> str:
        """What is known of it, and the condition itself where the exception does not show it."""
        values = [f"{name} is {setting.value:g} (line {setting.line})" for name, setting in self.known]
        values += [f"{text} is {value:g}" for text, value in self.sums]
        shown = [] if ": assert " in said else [f"{self.text} does not hold"]
        return ": ".join(filter(None, (*shown, ", ".join(values))))


def condition_of(failure: Failure, settings: LoggedSettings) -> Condition | None:
    """The condition that an assertion of a failure names; of several that must hold the one that is known not to."""
    tree = parsed_condition(failure)
    if tree is None:
        return None
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    told = [_condition(part, settings) for part in parts]
    return next((each for each in told if each.holds is False), told[0] if len(told) == 1 else None)


def parsed_condition(failure: Failure) -> ast.expr | None:
    """What stands between `assert` and its message, in the words of the exception or in its failing line."""
    if failure.kind.rpartition(".")[2] != "AssertionError":
        return None
    found = next((found for text in (failure.message, failure.code) if (found := _ASSERT.match(text.strip()))), None)
    if found is None:
        return None
    rest = found["rest"]
    ends = [message.start() for message in _MESSAGE.finditer(rest)]
    for end in (len(rest), *ends):
        try:
            tree = ast.parse(f"({rest[:end]})", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return tree.elts[0] if isinstance(tree, ast.Tuple) and tree.elts else tree
    return None


def _condition(tree: ast.expr, settings: LoggedSettings) -> Condition:
    names = dict.fromkeys(_names(tree))
    known = tuple((name, setting) for name in names if (setting := settings.named(name)) is not None)
    values = {name: float(setting.value) for name, setting in known}
    result = _value(tree, values)
    text = ast.unparse(tree)
    is_rule = any(isinstance(node, _IS_RULE) for node in ast.walk(tree))
    others = [name for name in names if not _SETTINGS_OF.search(name) and name not in values]
    is_named = any(map(_SETTINGS_OF.search, names)) and all(map(_OF_LAYOUT.search, others))
    sides = [tree.left, *tree.comparators] if isinstance(tree, ast.Compare) else []
    sums = [(ast.unparse(side), value) for side in sides if (value := _sum(side, values)) is not None]
    holds = None if result is None else bool(result)
    return Condition(text[:_SHOWN], known, holds, is_rule and is_named, tuple(sums))


def _sum(side: ast.expr, values: Mapping[str, float]) -> float | None:
    return _value(side, values) if isinstance(side, ast.BinOp) else None


def _names(tree: ast.AST) -> Iterator[str]:
    """The names in an expression, with the dots in them, from the left; of a call those of its arguments."""
    if name := _dotted(tree):
        yield name
        return
    for node in tree.args if isinstance(tree, ast.Call) else ast.iter_child_nodes(tree):
        yield from _names(node)


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        owner = _dotted(node.value)
        return f"{owner}.{node.slice.value}" if owner else ""
    return ""


def _value(node: ast.expr, values: Mapping[str, float]) -> float | None:
    """What an expression is with these values; None where it needs anything else."""
    if name := _dotted(node):
        return values.get(name)
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            value = _value(inner, values)
            return None if value is None else float(not value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _MATHS:
            one, other = _value(left, values), _value(right, values)
            is_divided = isinstance(op, ast.Div | ast.FloorDiv | ast.Mod)
            if one is None or other is None or (is_divided and not other):
                return None
            return _finite(_MATHS[type(op)](one, other))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARES:
            one, other = _value(left, values), _value(right, values)
            return None if one is None or other is None else float(_COMPARES[type(op)](one, other))
    return None


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def kind_of_condition(failure: Failure) -> str:
    """The entry that says in words what an assertion without a message asks for: that something is not empty, not
    None, of a type, as long or as wide as another one, or a file that exists; else nothing."""
    tree = parsed_condition(failure) if failure.message == "" or failure.message.startswith("assert ") else None
    match tree:
        case ast.Call(func=ast.Name(id="len")):
            return "something-is-empty"
        case ast.Compare(left=ast.Call(func=ast.Name(id="len")), ops=[op], comparators=[ast.Constant(value=number)]):
            is_some = (isinstance(op, ast.Gt | ast.NotEq) and number == 0) or (isinstance(op, ast.GtE) and number == 1)
            return "something-is-empty" if is_some else ""
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return "value-is-none"
        case ast.Call(func=ast.Name(id="isinstance")):
            return "value-of-another-type"
        case ast.Call(func=ast.Attribute(attr="exists" | "isfile" | "isdir" | "is_file" | "is_dir")):
            return "path-missing"
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) if _is_size(left) or _is_size(right):
            return "tensor-lengths-differ"
    return ""


def _is_size(node: ast.expr) -> bool:
    """Whether an expression is the shape of a tensor, one size of it, or a length."""
    match node:
        case ast.Subscript(value=inner):
            return _is_size(inner)
        case ast.Attribute(attr="shape") | ast.Call(func=ast.Attribute(attr="size" | "numel")):
            return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"


def asks_result_of_call(failure: Failure) -> bool:
    """Whether an assertion without a message only says that a call did not succeed, as `store.put(key) == 0` does: why
    is said by what was called."""
    tree = parsed_condition(failure) if failure.message.startswith("assert ") else None
    match tree:
        case ast.Compare(left=ast.Call(func=function), comparators=[ast.Constant()]) | ast.Call(func=function):
            return not (isinstance(function, ast.Name) and function.id in _LOOKS)
    return False
