"""Which names an expression of the source stands for: its own, those of the tables that it is taken out of, and those
of what its variables were given."""

import ast
from collections.abc import Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_TAKING_OUT = frozenset({"pop", "popleft", "popitem", "get", "setdefault", "values", "items", "copy"})
_PASSING_ON = frozenset({"list", "tuple", "sorted", "reversed", "iter", "next", "enumerate", "zip", "set", "dict"})
_DEPTH = 4
_MAKING = (ast.Dict, ast.List, ast.Tuple)


def names_of(expression: ast.expr, function: ast.AST, depth: int = 0) -> frozenset[str]:
    """Last names: `boxes` for `self.boxes[key]`, for `self.boxes.pop(key)`, and for `box` after `box = self.boxes[key]`
    or in `for box in self.boxes.values()`."""
    if depth > _DEPTH:
        return frozenset()
    if isinstance(expression, ast.Attribute):
        return frozenset({expression.attr})
    if isinstance(expression, ast.Name):
        given = [names_of(each, function, depth + 1) for each in given_to(expression.id, function)]
        return frozenset({expression.id}).union(*given)
    if isinstance(expression, ast.Subscript | ast.Starred | ast.Await | ast.NamedExpr):
        return names_of(expression.value, function, depth + 1)
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        owner = expression.func.value
        if isinstance(owner, ast.Name) and owner.id == "self":
            # What one of its own methods gives, is known by the name of the method.
            return frozenset({f"{expression.func.attr}()"})
        # `box = boxes.get(key)` is one of the boxes; what a queue gives is no queue.
        is_item = expression.func.attr == "get" and not expression.args
        is_taken = expression.func.attr in _TAKING_OUT and not is_item
        return names_of(owner, function, depth + 1) if is_taken else frozenset()
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name):
        passed = expression.args if expression.func.id in _PASSING_ON else []
        return frozenset().union(*(names_of(each, function, depth + 1) for each in passed))
    return frozenset()


def parsed(name: str) -> ast.expr:
    """A name as an expression; one that was cut short has none."""
    try:
        return ast.parse(name, mode="eval").body
    except SyntaxError:
        return ast.Constant(None)


def last_name(expression: ast.expr) -> str:
    """`put` for `self.items.put`; empty for anything but a name or an attribute."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What a function consists of, without the functions inside of it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            yield node
            yield from own_nodes(node)


def given_to(name: str, function: ast.AST) -> Iterator[ast.expr]:
    """What a function gives one of its variables: by assignment, or element by element in a loop."""
    for node in own_nodes(function):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.NamedExpr):
            targets, value = [node.target], node.value
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            targets, value = [node.target], node.iter
        else:
            continue
        if any(isinstance(each, ast.Name) and each.id == name for target in targets for each in ast.walk(target)):
            yield value
            # What is assigned to several names at once has all of them.
            yield from (target for target in targets if isinstance(target, ast.Attribute | ast.Subscript))


def attributes_given(node: ast.AST, name: str) -> Iterator[ast.Attribute]:
    """Attributes that an assignment gives a variable of this name, alone or together with it: `self.reply = future`."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    value = node.value if isinstance(node, ast.Assign) else None
    same = any(isinstance(each, ast.Name) and each.id == name for each in (value, *targets))
    yield from (target for target in targets if same and isinstance(target, ast.Attribute))


def tables_given(node: ast.AST, name: str) -> Iterator[ast.expr]:
    """Tables in which an assignment puts a variable of this name: `self.requests[key] = future`, or what it makes of
    it: `self.requests[key] = {"future": future}`; or the one whose element has this name."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    value = node.value if isinstance(node, ast.Assign) else None
    made = ast.walk(value) if isinstance(value, _MAKING) else [value]
    same = any(isinstance(each, ast.Name) and each.id == name for each in made)
    same |= any(isinstance(target, ast.Name) and target.id == name for target in targets)
    elements = [target for target in targets if isinstance(target, ast.Subscript)]
    yield from (target.value for target in elements if same or ast.unparse(target) == name)
