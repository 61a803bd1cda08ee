"""The tools of a conversation, which of them an answer must call, and the grammar that makes it do so."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rldbg.inference.conversation.families import TemplateFamily
from rldbg.inference.request_error import RequestError


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`auto` leaves it to the model, `none` reads no calls, `required` forces a call: of `name` if there is one."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None


AUTO = ToolChoice()


def listed(tools: Any) -> list[dict[str, Any]]:
    """The tools of a request, in whatever form; none where the field is missing."""
    found = [] if tools is None else tools
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        raise RequestError("tools must be a list of objects")
    return found


def function(name: str, description: Any = None, parameters: Any = None) -> dict[str, Any]:
    """A tool in the form that chat templates take."""
    known = {"name": name, "description": description or "", "parameters": parameters or {"type": "object"}}
    return {"type": "function", "function": known}


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of each tool's parameters, by the tool's name."""
    functions = [tool.get("function", tool) for tool in tools]
    return {str(item.get("name")): item.get("parameters") or {} for item in functions}


def forced_calls(family: TemplateFamily, schemas: Mapping[str, Any], added: Mapping[str, int], *, several: bool) -> str:
    """A grammar, in the language of llguidance, of a call of one of these tools as the family writes it.

    With `several`, more calls may follow where the family writes them. Markers that are tokens of their own (`added`)
    are demanded as these tokens.
    """
    form = family.form
    marks = sorted((mark for mark in added if mark in "\0".join(form.texts)), key=len, reverse=True)
    any_call = " | ".join(f"call_{number}" for number in range(len(schemas)))
    more = ""
    if several and form.between is not None:
        more = f"({_pieces(form.between, marks, added)} call)*"
    lines = [f"start: {_pieces(form.first, marks, added)} call {more} {_pieces(form.last, marks, added)}"]
    lines += [f"call: {any_call}", "NUMBER: /0|[1-9][0-9]?/"]
    for number, (name, schema) in enumerate(schemas.items()):
        options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        arguments = json.dumps(_object(schema) | {"x-guidance": options})
        opening = " NUMBER ".join(
            _pieces(piece.replace("NAME", name), marks, added) for piece in form.before.split("NUMBER")
        )
        lines.append(f"call_{number}: {opening} %json {arguments} {_pieces(form.after, marks, added)}")
    return "\n".join(lines)


def _object(schema: Any) -> dict[str, Any]:
    """Arguments are those that are declared, unless the schema says otherwise: a weak model would invent more."""
    given = dict(schema) if isinstance(schema, Mapping) else {}
    return {"type": "object"} | ({"additionalProperties": False} if given.get("properties") else {}) | given


def _pieces(text: str, marks: Sequence[str], added: Mapping[str, int]) -> str:
    pieces = re.split("(" + "|".join(map(re.escape, marks)) + ")", text) if marks else [text]
    return " ".join(f"<[{added[piece]}]>" if piece in added else json.dumps(piece) for piece in pieces if piece)
