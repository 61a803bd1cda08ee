"""Which expressions may be evaluated in a stopped process without leave to control it: those that only look."""

import ast

from rldbg.core import UsageError

_LOOKS = (
    ast.Expression, ast.Name, ast.Load, ast.Attribute, ast.Subscript, ast.Slice, ast.Constant, ast.Tuple, ast.List,
    ast.Dict, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop,
)  # fmt: skip
_HARMLESS_CALLS = ("len", "type", "id", "isinstance", "hasattr")


def refuse_effects(expression: str) -> None:
    """Names, attributes, items, arithmetic, `len`, `type`. A call could change the run or hang it in a collective."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError as error:
        raise UsageError(
            f"invalid expression: {error.msg}", "give a Python expression, for example loss.shape"
        ) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _HARMLESS_CALLS and not node.keywords:
                continue
            what = f"calls {ast.unparse(node.func)}"
        elif isinstance(node, _LOOKS):
            continue
        else:
            what = f"has {type(node).__name__}"
        raise UsageError(
            f"the expression {what}, which may change the run",
            "names, attributes, items and arithmetic are always possible; calls need `rldbg mcp --allow-control`",
        )
