"""How settings are declared, checked and documented, in every package.

A group of settings is a frozen dataclass: one field per setting, with its type, its default and, under it, a string
that says what it does. `setting` adds limits. Declaring and using settings needs nothing installed; `validated` reads
plain data (a block of YAML, environment variables, keywords) and needs pydantic.

    @dataclass(frozen=True, slots=True)
    class CheckpointSettings:
        __pydantic_config__: ClassVar = CLOSED

        every_n_steps: int = setting(0, at_least=0)
        '''Write a checkpoint at the steps that n divides; 0 writes none.'''
"""

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from rldbg.core.errors import UsageError

if TYPE_CHECKING:
    from pydantic import ValidationError

T = TypeVar("T")

CLOSED = {"extra": "forbid"}
"""For `__pydantic_config__`: a key that is not a field is an error."""


def setting(default: Any, *, at_least: float | None = None, above: float | None = None) -> Any:
    """A field with limits; None is always within them."""
    return field(default=default, metadata={"at_least": at_least, "above": above})


def validated(group: type[T], data: Any, *, source: str, page: str, name: str = "", others: Sequence[str] = ()) -> T:
    """The group of settings in plain data. UsageError names the key, with the nearest valid one if it is unknown.

    `name` is the group's own key in its file, `page` the documentation that explains its keys, `others` are valid keys
    beside the group's that somebody else reads.
    """
    from pydantic import TypeAdapter, ValidationError

    if not isinstance(data, Mapping | None):
        raise UsageError(f"{source}: {name} is not a mapping", f"write `{name}:` with keys under it")
    try:
        made: T = TypeAdapter(group).validate_python(dict(data or {}))
    except ValidationError as error:
        raise _explained(error, group, name, source, page, others) from error
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
    at_least, above = item.metadata.get("at_least"), item.metadata.get("above")
    if at_least is not None and value < at_least:
        return f"a value of at least {at_least}"
    if above is not None and value <= above:
        return f"a value above {above}"
    if get_origin(hint) is Literal and value not in get_args(hint):
        return "one of " + ", ".join(map(str, get_args(hint)))
    return None


def unknown_key(key: str, valid: Iterable[str], source: str) -> UsageError:
    """The error for a key that does not exist; `key` may be dotted, `valid` are names of its last part."""
    names = list(valid)
    near = get_close_matches(key.rpartition(".")[2], names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "valid names: " + ", ".join(names)
    return UsageError(f"{source}: unknown key {key!r}", hint)


def _explained(
    error: "ValidationError", group: type, name: str, source: str, page: str, others: Sequence[str]
) -> UsageError:
    """The first problem in a user's words."""
    problem = error.errors()[0]
    place = [str(part) for part in problem["loc"]]
    key = ".".join([name, *place]).lstrip(".")
    if problem["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        return unknown_key(key, [*_names_at(group, place[:-1]), *(others if len(place) == 1 else ())], source)
    expected = problem["msg"].replace("Input should be", "expected")
    return UsageError(f"{source}: invalid {key}: {problem['input']!r} ({expected})", f"see docs/{page} for {key}")


def _names_at(group: Any, place: Sequence[str]) -> list[str]:
    for part in place:
        group = get_type_hints(group).get(part)
    return [item.name for item in fields(group)] if is_dataclass(group) else []


class Described(NamedTuple):
    """One setting for a page of the documentation."""

    name: str
    default: Any
    meaning: str


def described(group: type) -> Iterator[Described]:
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
        yield Described(item.name, default, meanings.get(item.name, ""))
