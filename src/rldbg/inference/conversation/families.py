"""How families of models write tool calls and reasoning, known by the words of their chat templates.

A reader gets the whole region of the calls, with its markers, and the JSON schemas of the tools' parameters by name.
It gives (name, arguments) pairs, or raises ValueError for what is not a call.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schemas = Mapping[str, Any]
Calls = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class CallForm:
    """What is around the JSON object of the arguments of one call, `NAME` and `NUMBER` being those of the call, and
    around all calls of an answer. `between` is None where templates refuse answers of several calls."""

    before: str
    after: str
    first: str = ""
    last: str = ""
    between: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.first, self.before, self.after, self.last)


@dataclass(frozen=True, slots=True)
class TemplateFamily:
    """`signs` are texts of which a template of the family has one. `opens` and `closes` enclose calls; without
    `closes` they last until the answer ends. `at_start` calls are only at the beginning of an answer. `form` is how
    calls are written."""

    name: str
    signs: tuple[str, ...]
    opens: tuple[str, ...]
    closes: str | None
    read: Callable[[str, Schemas], Calls]
    form: CallForm
    at_start: bool = False


def _arguments(value: Any) -> str:
    """JSON text of an object; models also write the text themselves."""
    parsed = json.loads(value) if isinstance(value, str) else {} if value is None else value
    if not isinstance(parsed, dict):
        raise ValueError("arguments are not an object")
    return json.dumps(parsed, ensure_ascii=False)


def _json_values(text: str) -> Iterator[Any]:
    """One JSON value after another, with commas, semicolons or blanks between them."""
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        if text[place] in " \t\r\n,;":
            place += 1
            continue
        value, place = decoder.raw_decode(text, place)
        yield from value if isinstance(value, list) else [value]


def _json_calls(text: str) -> Calls:
    calls = []
    for value in _json_values(text):
        function = value.get("function", value) if isinstance(value, dict) else None
        if isinstance(function, str):
            function = value | {"name": function}
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError("a call has no name")
        given = next((function[key] for key in ("arguments", "parameters", "args") if key in function), None)
        calls.append((function["name"], _arguments(given)))
    if not calls:
        raise ValueError("no call")
    return calls


def _typed(schemas: Schemas, name: str, values: Mapping[str, str]) -> str:
    """Arguments written as text: what the schema calls a string stays one, the rest is JSON where it can be read."""
    properties = (schemas.get(name) or {}).get("properties") or {}
    found: dict[str, Any] = {}
    for key, value in values.items():
        found[key] = value
        if (properties.get(key) or {}).get("type") != "string":
            try:
                found[key] = json.loads(value)
            except ValueError:
                continue
    return json.dumps(found, ensure_ascii=False)


def _inside(region: str, opens: str, closes: str) -> Iterator[str]:
    for piece in region.split(opens)[1:]:
        yield piece.split(closes)[0].strip()


def _hermes(region: str, schemas: Schemas) -> Calls:
    """JSON, or the XML of Qwen's coders and of GLM, in the same tags."""
    calls: Calls = []
    for body in _inside(region, "<tool_call>", "</tool_call>"):
        if found := re.match(r"<function=([^>\s]+)>(.*?)(?:</function>|$)", body, re.DOTALL):
            pairs = re.findall(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", found[2], re.DOTALL)
            calls.append((found[1], _typed(schemas, found[1], dict(pairs))))
        elif "<arg_key>" in body or re.fullmatch(r"[\w.-]+", body):
            name = body.split("<arg_key>")[0].strip()
            pairs = re.findall(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", body, re.DOTALL)
            calls.append((name, _typed(schemas, name, dict(pairs))))
        else:
            calls += _json_calls(body)
    return calls


def _mistral(region: str, _schemas: Schemas) -> Calls:
    """A list of calls, or a name and its arguments after each marker."""
    calls: Calls = []
    for body in region.split("[TOOL_CALLS]")[1:]:
        named = re.match(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(\{.*)$", body, re.DOTALL)
        calls += [(named[1], _arguments(next(_json_values(named[2]))))] if named else _json_calls(body)
    return calls


def _deepseek(region: str, _schemas: Schemas) -> Calls:
    calls: Calls = []
    for body in _inside(region, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"):
        before, _, after = body.partition("<｜tool▁sep｜>")
        fenced = re.match(r"([^\n]+)\n```(?:json)?\n(.*?)(?:\n```|$)", after, re.DOTALL)
        name, arguments = (fenced[1], fenced[2]) if fenced else (before, after)
        calls.append((name.strip(), _arguments(arguments)))
    return calls


def _kimi(region: str, _schemas: Schemas) -> Calls:
    calls: Calls = []
    for body in _inside(region, "<|tool_call_begin|>", "<|tool_call_end|>"):
        name, _, arguments = body.partition("<|tool_call_argument_begin|>")
        calls.append((name.strip().removeprefix("functions.").partition(":")[0], _arguments(arguments)))
    return calls


def _granite(region: str, _schemas: Schemas) -> Calls:
    return _json_calls(region.removeprefix("<|tool_call|>"))


def _llama(region: str, _schemas: Schemas) -> Calls:
    return _json_calls(region.strip().removeprefix("<|python_tag|>"))


def _pythonic(region: str, schemas: Schemas) -> Calls:
    """A list of Python calls with literal arguments."""
    try:
        tree = ast.parse(region.strip(), mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return _llama(region, schemas)
        return [_python_call(node) for node in tree.elts]
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("not Python") from error


def _python_call(node: ast.expr) -> tuple[str, str]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    values = {str(item.arg): ast.literal_eval(item.value) for item in node.keywords}
    return ast.unparse(node.func), json.dumps(values, ensure_ascii=False)


_CALL_JSON = ('{"name": "NAME", "arguments": ', "}")
HERMES = TemplateFamily(
    "hermes", ("<tool_call>",), ("<tool_call>",), "</tool_call>", _hermes,
    CallForm(f"<tool_call>\n{_CALL_JSON[0]}", f"{_CALL_JSON[1]}\n</tool_call>", between="\n"),
)  # fmt: skip
_LLAMA_FORM = CallForm('{"name": "NAME", "parameters": ', "}")
# The first whose sign is in the template.
FAMILIES: tuple[TemplateFamily, ...] = (
    TemplateFamily(
        "deepseek", ("<｜tool▁calls▁begin｜>",), ("<｜tool▁calls▁begin｜>",), "<｜tool▁calls▁end｜>", _deepseek,
        CallForm(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n", "\n```<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", between="\n",
        ),
    ),
    TemplateFamily(
        "kimi", ("<|tool_calls_section_begin|>",), ("<|tool_calls_section_begin|>",), "<|tool_calls_section_end|>",
        _kimi,
        CallForm(
            "<|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>", "<|tool_call_end|>",
            "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", between="",
        ),
    ),
    TemplateFamily(
        "mistral", ("[TOOL_CALLS]",), ("[TOOL_CALLS]",), None, _mistral,
        CallForm(*_CALL_JSON, "[TOOL_CALLS][", "]", between=", "),
    ),
    TemplateFamily(
        "granite", ("<|tool_call|>",), ("<|tool_call|>",), None, _granite,
        CallForm(*_CALL_JSON, "<|tool_call|>[", "]", between=", "),
    ),
    HERMES,
    TemplateFamily("pythonic", ("func_name1(",), ("[", "{"), None, _pythonic, _LLAMA_FORM, at_start=True),
    TemplateFamily(
        "llama3", ("<|python_tag|>", '"parameters": dictionary', "<|start_header_id|>"), ("<|python_tag|>", "{"), None,
        _llama, _LLAMA_FORM, at_start=True,
    ),
)  # fmt: skip
_REASONING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


def family_of(template: str) -> TemplateFamily:
    """The family of a template; calls of models whose template has no known sign are read in Hermes' form."""
    return next((family for family in FAMILIES if any(sign in template for sign in family.signs)), HERMES)


def reasoning_marks(template: str) -> tuple[str, str] | None:
    """What encloses the reasoning of a template's model; None if it does not reason."""
    return next((marks for marks in _REASONING if marks[0] in template or marks[1] in template), None)
