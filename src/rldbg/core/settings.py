"""How settings are declared, checked and documented, in every package.

A group of settings is a frozen dataclass: one field per setting, with its type, its default and, under it, a string
that says what it does. `setting` adds limits. Declaring and using settings needs nothing installed; `validated` reads
plain data (a block of YAML, environment variables, keywords) and needs pydantic.

    @dataclass(frozen=True, slots=True)
    class CheckpointSettings:
        every_n_steps: int = setting(0, at_least=0)
        '''Write a checkpoint at the steps that n divides; 0 writes none.'''
"""

import ast
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from operator import ge, gt, le, lt
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from rldbg.core.errors import UsageError, did_you_mean

T = TypeVar("T")

_LIMITS: Mapping[str, Callable[[Any, Any], bool]] = {"at least": ge, "above": gt, "at most": le, "below": lt}


def setting(default: Any = MISSING, **limits: float) -> Any:
    """A field with limits: at_least, above, at_most, below. None is always within them."""
    return field(default=default, metadata={name.replace("_", " "): limit for name, limit in limits.items()})


def validated(
    group: type[T],
    data: Any,
    *,
    source: str,
    page: str,
    name: str = "",
    others: Sequence[str] = (),
    strict: bool = False,
) -> T:
    """The group of settings in plain data. UsageError names the key, with the nearest valid one if it is unknown.

    `name` is the group's own key in its file, `page` the documentation that explains its keys, `others` are valid keys
    in addition to the group's, read elsewhere. `strict` is for JSON: no text and no flag where a number is expected.
    """
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(data, Mapping | None):
        raise UsageError(f"{source}: {name} is not a mapping", f"write `{name}:` with keys under it")
    refuse_unknown(group, data or {}, source, name, others)
    try:
        adapter: TypeAdapter[T] = TypeAdapter(group)
        plain = dict(data or {})
        made = adapter.validate_json(json.dumps(plain), strict=True) if strict else adapter.validate_python(plain)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join([name, *map(str, problem["loc"])]).lstrip(".")
        expected = problem["msg"].replace("Input should be", "expected")
        message = f"{source}: invalid {key}: {problem['input']!r} ({expected})"
        raise UsageError(message, f"see docs/{page} for {key}") from error
    check_values(made, source=source, name=name)
    return made


def check_values(group: Any, *, source: str = "", name: str = "") -> None:
    """What types alone do not check: limits, and closed sets where nothing has validated them."""
    hints = get_type_hints(type(group))
    for item in fields(group):
        value, key = getattr(group, item.name), f"{name}.{item.name}".lstrip(".")
        if is_dataclass(value):
            check_values(value, source=source, name=key)
        elif value is not None and (expected := _expected(item, hints[item.name], value)):
            where = f"{source}: " if source else ""
            raise UsageError(f"{where}invalid {key}: {value!r}", f"set {key} to {expected}")


def _expected(item: "Field[Any]", hint: Any, value: Any) -> str | None:
    """What a value should have been; None where it is fine."""
    for name, limit in item.metadata.items():
        if not _LIMITS[name](value, limit):
            return f"a value {'of ' if ' ' in name else ''}{name} {limit}"
    if get_origin(hint) is Literal and value not in get_args(hint):
        return "one of " + ", ".join(map(str, get_args(hint)))
    return None


def unknown_key(key: str, valid: Iterable[str], source: str) -> UsageError:
    """The error for a key that does not exist; `key` may be dotted, `valid` are names of its last part."""
    names = list(valid)
    hint = did_you_mean(key.rpartition(".")[2], names, "valid names: " + ", ".join(names))
    return UsageError(f"{source}: unknown key {key!r}", hint)


def refuse_unknown(
    group: Any, data: Mapping[str, Any], source: str, name: str = "", others: Sequence[str] = ()
) -> None:
    """Raises `unknown_key` for the first key of plain data that a group, or a group within it, does not have."""
    hints = get_type_hints(group)
    names = [item.name for item in fields(group)]
    for key, value in data.items():
        path = f"{name}.{key}".lstrip(".")
        if key not in names:
            raise unknown_key(path, [*names, *others], source)
        if is_dataclass(hints[key]) and isinstance(value, Mapping):
            refuse_unknown(hints[key], value, source, path, ())


class SettingDescription(NamedTuple):
    """One setting for a page of the documentation."""

    name: str
    default: Any
    meaning: str


def described(group: type) -> Iterator[SettingDescription]:
    """Every setting of a group, with the string under its field."""
    body = ast.parse(inspect.getsource(group)).body[0]
    assert isinstance(body, ast.ClassDef) and is_dataclass(group)
    meanings = {
        item.target.id: str(ast.literal_eval(text.value))
        for item, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and isinstance(text, ast.Expr)
    }
    for item in fields(group):
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        yield SettingDescription(item.name, default, meanings.get(item.name, ""))
