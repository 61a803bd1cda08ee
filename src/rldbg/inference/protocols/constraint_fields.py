"""The many names under which protocols ask for constrained answers: at most one of them per request."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from rldbg.inference.generation import Constraint
from rldbg.inference.protocols.fields import Fields
from rldbg.inference.request_error import RequestError

_ANY_OBJECT = Constraint("json_schema", '{"type": "object"}')
_Reader = Callable[[Any, str], Constraint | None]


def constraint_of(fields: Fields) -> Constraint | None:
    """The constraint of a request, by whichever field asks for it."""
    asked = [(name, found) for name, read in _FIELDS.items() if (found := read(fields.raw(name), name)) is not None]
    if len(asked) > 1:
        raise RequestError(f"{' and '.join(name for name, _ in asked)} are mutually exclusive: send one of them")
    return asked[0][1] if asked else None


def json_format(value: Any, name: str) -> Constraint | None:
    """OpenAI's formats: {"type": "text" | "json_object" | "json_schema"}, the schema beside or in `json_schema`."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or value.get("type") not in ("text", "json_object", "json_schema"):
        raise RequestError(f"{name} must be an object of type text, json_object or json_schema")
    if value["type"] == "text":
        return None
    if value["type"] == "json_object":
        return _ANY_OBJECT
    inner = value.get("json_schema")
    holder = inner if isinstance(inner, Mapping) else value
    return schema(holder.get("schema", inner), f"{name}.schema")


def schema(value: Any, name: str) -> Constraint | None:
    """A JSON schema as an object or as its text."""
    if value is None:
        return None
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise RequestError(f"{name} is not JSON: {error}") from error
    if not isinstance(parsed, Mapping):
        raise RequestError(f"{name} must be a JSON schema")
    return Constraint("json_schema", json.dumps(parsed))


def _regex(value: Any, name: str) -> Constraint | None:
    return None if _empty(value, name) else Constraint("regex", value)


def _grammar(value: Any, name: str) -> Constraint | None:
    return None if _empty(value, name) else Constraint("grammar", value)


def _empty(value: Any, name: str) -> bool:
    if not isinstance(value, str | None):
        raise RequestError(f"{name} must be a string")
    return not value


def _choice(value: Any, name: str) -> Constraint | None:
    if not value:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise RequestError(f"{name} must be a list of strings")
    return Constraint("choice", json.dumps(value))


def _structured(value: Any, name: str) -> Constraint | None:
    """vLLM's object, of which one field says what is wanted."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} must be an object")
    inner = Fields(value, f"{name}.")
    if inner.flag("json_object"):
        return _ANY_OBJECT
    asked = [found for key, read in _STRUCTURED.items() if (found := read(inner.raw(key), f"{name}.{key}"))]
    if len(asked) > 1:
        raise RequestError(f"{name} must have one of {', '.join(_STRUCTURED)}")
    return asked[0] if asked else None


_STRUCTURED: Mapping[str, _Reader] = {"json": schema, "regex": _regex, "choice": _choice, "grammar": _grammar}
_FIELDS: Mapping[str, _Reader] = {
    "response_format": json_format,
    "structured_outputs": _structured,
    "guided_decoding": _structured,
    "guided_json": schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "json_schema": schema,
    "regex": _regex,
    "ebnf": _grammar,
    "structured_outputs_regex": _regex,
    "guided_decoding_regex": _regex,
}
