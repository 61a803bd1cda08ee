"""What a Python file defines, read from its text and never run: names, and classes with their arguments and attributes.

For `record_api_history.py`. A decorator that still takes arguments by their old names is seen
(`@deprecate_kwarg("tokenizer", ...)`); what only running would tell (`setattr`, `globals()`) is not.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_SET_ON_SELF = re.compile(r"self\.([A-Za-z]\w*)(?:: [^=]+)? = ")
_LISTED = re.compile(r"__all__ = \[(.*?)\]", re.DOTALL)
_DATACLASSES = {"dataclass", "config", "BaseModel", "Struct"}
"""Decorators and bases that make a class's fields its arguments."""
_PUBLIC_NAME = re.compile(r"[A-Za-z]\w+")
_TAKES_OLD_NAMES = re.compile(r"_?(?:deprecat\w*|renam\w*|moved?)_(?:kw)?arg\w*")
"""Decorators that take arguments by the names that they had before."""


@dataclass
class DefinedClass:
    bases: list[str]
    """Their names, without their modules."""
    is_dataclass: bool = False
    attributes: set[str] = field(default_factory=set)
    fields: list[str] = field(default_factory=list)
    """Annotated in the body: the arguments of a dataclass."""
    methods: dict[str, list[str]] = field(default_factory=dict)
    """The arguments of each."""


@dataclass
class DefinedNames:
    importable: set[str] = field(default_factory=set)
    """Also what the file imports from one of the packages; `*` where that is all of a module."""
    own: set[str] = field(default_factory=set)
    classes: dict[str, DefinedClass] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    """Its `__all__`."""


def listed_names(text: str) -> DefinedNames:
    """Only `__all__`, of a file whose names another module exports."""
    found = _LISTED.search(text)
    return DefinedNames(listed=set(re.findall(r'"(\w+)"', found[1])) if found else set())


def defined_names(text: str, *, is_package: bool, packages: Collection[str]) -> DefinedNames:
    """All that a file defines; `packages` are those whose names are followed when the file imports them.

    The `__init__` of a package counts as having each name that it has as a string: those of lazy imports are."""
    tree = ast.parse(text)
    found = listed_names(text)
    lines = text.split("\n")
    for node in _statements(tree.body):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.own.add(name)
            case ast.ClassDef(name=name):
                found.own.add(name)
                found.classes[name] = _defined_class(node, lines)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                if is_package or _is_followed(node, packages):
                    found.importable |= {(name.asname or name.name).partition(".")[0] for name in names}
            case _:
                found.own |= set(_assigned(node))
    if is_package:
        strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        found.importable |= {text for text in strings if isinstance(text, str) and _PUBLIC_NAME.fullmatch(text)}
    found.importable |= found.own
    return found


def arguments_and_attributes(
    defined: DefinedClass, classes: Mapping[str, Sequence[DefinedClass]]
) -> tuple[list[str] | None, set[str]]:
    """The arguments that make an object (None: no class here says which), and its attributes.

    An error names a class without its module, so a base is any of `classes` with that name."""
    arguments: list[str] | None = None
    fields: list[str] = []
    attributes: set[str] = set()
    seen: set[str] = set()
    waiting = [defined]
    while waiting:
        one = waiting.pop(0)
        attributes |= one.attributes
        fields += one.fields
        if arguments is None:
            arguments = one.methods.get("__init__")
        for base in one.bases:
            if base not in seen:
                seen.add(base)
                waiting += classes.get(base, ())
    if arguments is None and (fields or (defined.is_dataclass and seen <= classes.keys() | _DATACLASSES)):
        arguments = fields
    return arguments, attributes


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module, also under its `if` and `try`; not `import *` for type checkers, which no program runs."""
    for node in body:
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            inner = _statements(node.body)
            yield from (one for one in inner if not (isinstance(one, ast.ImportFrom) and one.names[0].name == "*"))
            yield from _statements(node.orelse)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)
        else:
            yield node


def _is_followed(node: ast.Import | ast.ImportFrom, packages: Collection[str]) -> bool:
    return isinstance(node, ast.ImportFrom) and bool(node.level or (node.module or "").partition(".")[0] in packages)


def _assigned(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        targets = [node.target]
    for target in targets:
        for one in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(one, ast.Name):
                yield one.id


def _defined_class(node: ast.ClassDef, lines: Sequence[str]) -> DefinedClass:
    found = DefinedClass(
        bases=[name for base in node.bases if (name := _last_name(base))],
        is_dataclass=any(_last_name(node) in _DATACLASSES for node in (*node.bases, *node.decorator_list)),
    )
    for member in node.body:
        match member:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.attributes.add(name)
                found.methods[name] = _arguments(member)
                for line in lines[member.lineno - 1 : member.end_lineno]:
                    found.attributes.update(_SET_ON_SELF.findall(line))
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.attributes.add(name)
                found.fields.append(name)
            case ast.ClassDef(name=name):
                found.attributes.add(name)
            case ast.Assign(targets=targets):
                found.attributes |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _last_name(node: ast.expr) -> str:
    """`Base` of `Base`, of `module.Base`, of `Base[T]` and of `Base(...)`."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return _last_name(inner)
    return ""


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Those that a caller can give by name, without the object itself."""
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    is_static = any(_last_name(decorator) == "staticmethod" for decorator in node.decorator_list)
    if names[:1] in (["self"], ["cls"]) and not is_static:
        names = names[1:]
    names += [argument.arg for argument in node.args.kwonlyargs]
    return list(dict.fromkeys([*names, *_old_names(node)]))


def _old_names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Those that its decorators still take and hand on under another name."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and _TAKES_OLD_NAMES.fullmatch(_last_name(decorator)):
            given = [*decorator.args, *(each.value for each in decorator.keywords if each.arg == "old_name")]
            texts = (each.value for each in given if isinstance(each, ast.Constant))
            yield from (text for text in texts if isinstance(text, str) and text.isidentifier())
