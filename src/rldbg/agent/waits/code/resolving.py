"""Expressions of the source, and what they stand for in a frame; nothing of the program is run."""

import ast
import operator
from collections.abc import Callable

from ..reading.objects import Frame, Object, is_a, path_text, quoted

_COMPARED: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_BRACKETS = {"list": "[]", "deque": "[]", "tuple": "()", "set": "{}", "frozenset": "{}", "dict": "{}"}
_MOST_ELEMENTS = 8


def resolve(expression: ast.expr | None, frame: Frame) -> Object | None:
    """The object that a name, an attribute or a constant element stands for in a frame."""
    if isinstance(expression, ast.Name):
        return frame.variable(expression.id)
    if isinstance(expression, ast.Attribute):
        return _attribute(resolve(expression.value, frame), expression.attr)
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name):
        # As decorators take the lock of the object whose method they call.
        given = expression.args if expression.func.id == "getattr" else []
        names = texts_of(given[1], frame) if len(given) > 1 else []
        return _attribute(resolve(given[0], frame), names[0]) if len(names) == 1 else None
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        # Values and arrays of multiprocessing have a lock of their own.
        owner = resolve(expression.func.value, frame) if expression.func.attr == "get_lock" else None
        return owner.get("_lock") if owner is not None else None
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        return _element(resolve(expression.value, frame), expression.slice.value)
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Name | ast.Attribute):
        index = resolve(expression.slice, frame)
        return _element(resolve(expression.value, frame), _plain(index) if index is not None else None)
    return None


def _attribute(owner: Object | None, name: str) -> Object | None:
    found = owner.get(name) if owner is not None else None
    if name == "value" and owner is not None and is_a(owner, "SynchronizedBase"):
        # A number that processes share is kept in one of C.
        return owner.get("_obj") or owner
    # What a property gives is not known without running it: what is called on it, is called on its owner.
    return owner if found is not None and found.kind == "property" else found


def _element(owner: Object | None, key: object) -> Object | None:
    if owner is None or key is None:
        return None
    if pairs := owner.pairs():
        return next((value for each, value in pairs if _plain(each) == key), None)
    elements = owner.elements() if isinstance(key, int) else []
    return elements[key] if isinstance(key, int) and -len(elements) <= key < len(elements) else None


def _plain(value: Object) -> object:
    """A text or a number; None for anything else."""
    return value.text() if value.text() is not None else value.number()


def holds(test: ast.expr, frame: Frame) -> bool | None:
    """Whether a condition on numbers and lengths is true now; None where that cannot be told."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = holds(test.operand, frame)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [holds(each, frame) for each in test.values]
        decides = isinstance(test.op, ast.Or)
        return decides if decides in parts else None if None in parts else not decides
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = (number_of(each, frame) for each in (test.left, test.comparators[0]))
        compare = _COMPARED.get(type(test.ops[0]))
        if compare is not None and left is not None and right is not None:
            return compare(left, right)
        return _is_equal(test, frame)
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and not test.args:
        return _asked(resolve(test.func.value, frame), test.func.attr)
    number = number_of(test, frame)
    if number is None and (value := resolve(test, frame)) is not None and value.text() is None:
        number = value.length()
    return None if number is None else bool(number)


def _is_equal(test: ast.Compare, frame: Frame) -> bool | None:
    """Of a comparison of texts, with None, or with the elements of a short collection."""
    operator_, left, right = test.ops[0], test.left, test.comparators[0]
    if isinstance(operator_, ast.Is | ast.IsNot):
        value = resolve(left, frame) if isinstance(right, ast.Constant) and right.value is None else None
        return None if value is None else (value.kind == "NoneType") is isinstance(operator_, ast.Is)
    own = _plain_of(left, frame)
    if own is None:
        return None
    if isinstance(operator_, ast.In | ast.NotIn):
        among = resolve(right, frame)
        elements = [] if among is None else [k for k, _ in among.pairs()] or among.elements()
        known = [_plain(each) for each in elements]
        if among is None or not is_a(among, *_BRACKETS) or None in known:
            return None
        return (own in known) is isinstance(operator_, ast.In)
    other = _plain_of(right, frame)
    if other is None or not isinstance(operator_, ast.Eq | ast.NotEq):
        return None
    return (own == other) is isinstance(operator_, ast.Eq)


def _plain_of(expression: ast.expr, frame: Frame) -> object:
    value = resolve(expression, frame)
    constant = expression.value if isinstance(expression, ast.Constant) else None
    return constant if value is None else _plain(value)


def _asked(value: Object | None, method: str) -> bool | None:
    """What an event or a queue answers that is asked whether something has happened."""
    if value is None or method not in ("is_set", "empty"):
        return None
    flag = value.get("_flag") or value.get("_value") if method == "is_set" and is_a(value, "Event") else None
    # That of an event between processes is a semaphore.
    lock = flag.get("_semlock") if flag is not None else None
    number = lock.permits() if lock is not None else flag.number() if flag is not None else None
    if method == "is_set":
        return None if number is None else bool(number)
    items = value.get("queue") or value.get("_queue") if "Queue" in value.kind else None
    size = items.length() if items is not None else None
    return None if size is None else not size


def number_of(expression: ast.expr, frame: Frame) -> float | None:
    """The number, or the length, that an expression stands for."""
    if isinstance(expression, ast.Constant):
        return expression.value if isinstance(expression.value, int | float) else None
    if isinstance(expression, ast.Call):
        counts = ast.unparse(expression.func) == "len" and len(expression.args) == 1
        counted = resolve(expression.args[0], frame) if counts else None
        return counted.length() if counted is not None else None
    value = resolve(expression, frame)
    if value is None:
        return None
    return value.real() if value.number() is None else value.number()


def texts_of(argument: ast.expr, place: Frame) -> list[str]:
    """A key or a list of keys, as far as they are plain."""
    if isinstance(argument, ast.Constant):
        return [argument.value] if isinstance(argument.value, str) else []
    if isinstance(argument, ast.List | ast.Tuple):
        return [text for each in argument.elts for text in texts_of(each, place)]
    if isinstance(argument, ast.JoinedStr):
        parts = [_part(each, place) for each in argument.values]
        return ["".join(parts)] if None not in parts else [ast.unparse(argument)[:80]]  # type: ignore[arg-type]
    value = resolve(argument, place)
    if value is None or value.text() is not None:
        return [value.text() or ""] if value is not None else [ast.unparse(argument)[:80]]
    return [text for each in value.elements() if (text := each.text()) is not None]


def _part(part: ast.expr, place: Frame) -> str | None:
    """A part of an f-string as it would be printed, where it is plain."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    if not isinstance(part, ast.FormattedValue):
        return None
    value = resolve(part.value, place)
    plain = _plain(value) if value is not None else None
    parts = (
        [_part(each, place) for each in part.format_spec.values] if isinstance(part.format_spec, ast.JoinedStr) else []
    )
    if plain is None or None in parts:
        return None
    try:
        return format(plain, "".join(parts))  # type: ignore[arg-type]
    except ValueError:
        return None


def values_in(expression: ast.expr, frame: Frame) -> str:
    """Texts, numbers, lengths and short collections in an expression, as far as they are plain."""
    found: dict[str, str] = {}
    # What is counted, or of which an element is shown, is not shown itself.
    counted: set[int] = set()
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and len(node.args) == 1:
            counted.add(id(node.args[0]))
            value = resolve(node.args[0], frame)
            size = value.length() if value is not None else None
            found |= {ast.unparse(node): str(size)} if size is not None else {}
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or id(node) in counted:
            continue
        value = resolve(node, frame)
        if value is not None and (shown := plain_text(value)) is not None:
            found[ast.unparse(node)] = shown
            counted |= {id(node.value)} if isinstance(node, ast.Subscript) else set()
    return f" ({', '.join(f'{name} = {value}' for name, value in list(found.items())[:3])})" if found else ""


def plain_text(value: Object) -> str | None:
    """A plain value as Python prints it, or a collection of few of them."""
    if is_a(value, "bytes"):
        return quoted(value, 80)
    plain = path_text(value) or _plain(value)
    if plain is not None and value.kind == "bool":
        return str(bool(plain))
    if plain is None and value.kind == "float":
        plain = value.real()
    if plain is not None:
        return repr(plain)[:80]
    if value.kind == "NoneType":
        return "None"
    if not is_a(value, *_BRACKETS) or not 0 < (value.length() or 0) <= _MOST_ELEMENTS:
        return None
    within = [key for key, _ in value.pairs()] if is_a(value, "dict") else value.elements()
    parts = [plain_text(each) for each in within]
    brackets = next(_BRACKETS[each] for each in _BRACKETS if is_a(value, each))
    return f"{brackets[0]}{', '.join(filter(None, parts))}{brackets[1]}"[:80] if None not in parts else None
