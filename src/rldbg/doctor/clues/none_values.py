"""Which name of a failing line is None, where an exception about NoneType leaves one or two that it can be.

The line is parsed, never run. Its operations are walked in the order in which Python does them.
"""

import ast
import re
from collections.abc import Iterator, Mapping

from rldbg.doctor.logs.evidence import Failure

_OPERANDS = re.compile(r"unsupported operand type\(s\) for (?P<op>\S+?):? '(?P<left>\w+)' and '(?P<right>\w+)'")
_COMPARED = re.compile(r"'(?P<op>[<>]=?)' not supported between instances of '(?P<left>\w+)' and '(?P<right>\w+)'")
_ATTRIBUTE = re.compile(r"'NoneType' object has no attribute '(?P<name>\w+)'")
_NONE = "NoneType"
_OPERATORS: Mapping[str, type[ast.operator] | type[ast.cmpop]] = {
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "/": ast.Div,
    "//": ast.FloorDiv,
    "%": ast.Mod,
    "**": ast.Pow,
    "@": ast.MatMult,
    "|": ast.BitOr,
    "&": ast.BitAnd,
    "<": ast.Lt,
    "<=": ast.LtE,
    ">": ast.Gt,
    ">=": ast.GtE,
}
_OF_SETTINGS = re.compile(
    r"^(?:self\.|trainer\.)?(?P<holder>_?(?:args|cfg|config|conf|hparams|opts?|FLAGS|settings))\.(?P<key>\w+(?:\.\w+)*)$"
)
"""A setting of the program; that of a model (`model.config`) nobody gives."""
_FLAGS = ("args", "opt", "opts", "FLAGS")
_NOT_MADE = (
    ast.Constant,
    ast.BinOp,
    ast.Compare,
    ast.JoinedStr,
    ast.List,
    ast.Tuple,
    ast.Dict,
    ast.ListComp,
    ast.Lambda,
)
"""What is never None, whatever it is made of."""
_TAKES_ALL = frozenset(
    {"list", "set", "tuple", "sorted", "enumerate", "sum", "max", "min", "any", "all", "dict", "map"}
)
_SHOWN = 2
_LONGEST = 80


def none_in_line(failure: Failure) -> str:
    """What is None in the failing line, and which setting was not given where it is one; nothing where the line leaves
    more than two."""
    names = _none_names(failure)
    told = " or ".join(names)
    if options := settings_not_given(failure):
        return f"{told} is None: the setting {' or '.join(options)} was not given"
    return f"{told} is None" if told else ""


def settings_not_given(failure: Failure) -> list[str]:
    """The settings that are None in the failing line, each with its option where it is one of a command line; nothing
    where it can have been anything else."""
    names = _none_names(failure)
    found = [setting for name in names if (setting := _OF_SETTINGS.search(name))]
    shown = [
        f"{each['key']} (--{each['key'].replace('_', '-')})" if each["holder"] in _FLAGS else each["key"]
        for each in found
    ]
    return shown if len(found) == len(names) else []


def _none_names(failure: Failure) -> list[str]:
    said = failure.headline
    tree = _parsed(failure.code) if _NONE in said and failure.code else None
    found = [node for node in _candidates(said, tree) if not isinstance(node, _NOT_MADE)] if tree else []
    names = list(dict.fromkeys(text for node in found if len(text := _shown(node)) <= _LONGEST))
    return names if len(names) <= _SHOWN else []


def _shown(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"what {text} returned" if isinstance(node, ast.Call | ast.Await) else text


def _parsed(code: str) -> ast.AST | None:
    """A line of code, which may be the head of a block or the beginning of a longer call."""
    text = re.sub(r"^el(?=if\b)", "", code.strip()).rstrip(",")
    closing = "".join({"(": ")", "[": "]", "{": "}"}[sign] for sign in reversed(_open_brackets(text)))
    for whole in (text, f"{text} pass", f"{text}{closing}", f"{text}{closing}: pass"):
        try:
            return ast.parse(whole)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def _open_brackets(text: str) -> list[str]:
    """The brackets that a line opens and does not close; quoted ones are seldom and only make it unreadable."""
    found: list[str] = []
    for sign in text:
        if sign in "([{":
            found.append(sign)
        elif sign in ")]}" and found:
            found.pop()
    return found


def _candidates(said: str, tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions that can have been None for this message, in the order in which Python meets them."""
    if pair := _OPERANDS.search(said) or _COMPARED.search(said):
        yield from _of_operation(pair, tree)
        return
    attribute = _ATTRIBUTE.search(said)
    for node in _in_order(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if attribute is not None and name == attribute["name"]:
                yield value
            case ast.Subscript(value=value) if "not subscriptable" in said or "item assignment" in said:
                yield value
            case ast.Call(func=ast.Name(id="len"), args=[value]) if "has no len()" in said:
                yield value
            case ast.Call(func=ast.Name(id="int" | "float"), args=[value]) if "() argument must be" in said:
                yield value
            case ast.Call(func=value) if "not callable" in said:
                yield value
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[value]) if "argument of type" in said:
                yield value
            case _ if "is not iterable" in said and "argument of type" not in said:
                yield from _iterated(node)
            case ast.Assign(targets=[ast.Tuple()], value=value) if "cannot unpack" in said:
                yield value


def _of_operation(pair: re.Match[str], tree: ast.AST) -> Iterator[ast.expr]:
    """The side that is None of each operation of that sign; of one whose other side cannot have the type that the
    message names there is none."""
    operator = _OPERATORS.get(pair["op"].removesuffix("=") if pair["op"] not in ("<=", ">=") else pair["op"])
    for node in _in_order(tree):
        match node:
            case ast.BinOp(left=left, op=op, right=right) if operator and isinstance(op, operator):
                sides = ((left, pair["left"]), (right, pair["right"]))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if operator and isinstance(op, operator):
                sides = ((left, pair["left"]), (right, pair["right"]))
            case ast.AugAssign(target=left, op=op, value=right) if operator and isinstance(op, operator):
                sides = ((left, pair["left"]), (right, pair["right"]))
            case _:
                continue
        if all(_can_be(side, kind) for side, kind in sides):
            yield from (side for side, kind in sides if kind == _NONE)


def _can_be(side: ast.expr, kind: str) -> bool:
    if isinstance(side, ast.Constant):
        return type(side.value).__name__ == kind
    return kind != _NONE or not isinstance(side, _NOT_MADE)


def _iterated(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.For(iter=value) | ast.comprehension(iter=value) | ast.Starred(value=value):
            yield value
        case ast.Call(func=ast.Name(id=name), args=[value, *_]) if name in _TAKES_ALL:
            yield value
        case ast.Call(func=ast.Name(id="zip"), args=values):
            yield from values


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, the parts of an operation before itself."""
    for child in ast.iter_child_nodes(tree):
        yield from _in_order(child)
    yield tree
