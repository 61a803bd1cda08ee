"""Expressions of the source and the objects that they stand for in a frame; nothing is evaluated."""

import ast

from .objects import Frame, Object


def resolve(expression: ast.expr | None, frame: Frame) -> Object | None:
    """The object that a name, an attribute or a constant element stands for in a frame."""
    if isinstance(expression, ast.Name):
        return frame.variable(expression.id)
    if isinstance(expression, ast.Attribute):
        owner = resolve(expression.value, frame)
        found = owner.get(expression.attr) if owner is not None else None
        # What a property gives is not known without running it: what is called on it, is called on its owner.
        return owner if found is not None and found.kind == "property" else found
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
    if not isinstance(part, ast.FormattedValue) or part.format_spec is not None:
        return None
    value = resolve(part.value, place)
    text, number = (value.text(), value.number()) if value is not None else (None, None)
    return text if text is not None else str(number) if number is not None else None
