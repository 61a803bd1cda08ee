"""Tool calls and reasoning as families of models write them, read whole and in pieces of any size."""

from dataclasses import replace

import pytest

from rldbg.inference.conversation.answer import Answer, ToolCall
from rldbg.inference.conversation.families import FAMILIES, family_of, reasoning_marks
from rldbg.inference.conversation.parsing import AnswerParser, Reading, parse_answer

DEEPSEEK = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>\n'
    "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
KIMI = (
    '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)
F, G = ("f", '{"a": 1}'), ("g", "{}")
WRITTEN = {
    "hermes": ('Look:\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n'
               '{"name": "g", "arguments": {}}\n</tool_call>\n', "Look:", [F, G]),
    "hermes text arguments": ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [F]),
    "hermes not closed": ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}', "", [F]),
    "hermes xml": ("<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", "", [F]),
    "hermes glm": ("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "", [F]),
    "hermes broken": ('Hm <tool_call>\n{"name": "f", "argu', 'Hm<tool_call>\n{"name": "f", "argu', []),
    "hermes cut": ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n{"name": "g", "argu',
                   '<tool_call>\n{"name": "g", "argu', [F]),
    "llama3": ('{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}', "", [F, G]),
    "llama3 tagged": ('<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "", [F]),
    "llama3 later": ('See {"name": "f", "parameters": {}}', 'See {"name": "f", "parameters": {}}', []),
    "pythonic": ("[f(a=1), g()]", "", [F, G]),
    "mistral": ('[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', "", [F]),
    "mistral named": ('ok[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{}', "ok", [F, G]),
    "deepseek": (DEEPSEEK, "", [F, G]),
    "kimi": (KIMI, "", [F]),
    "granite": ('<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]', "", [F]),
}  # fmt: skip


def reading_of(case):
    family = next(item for item in FAMILIES if item.name == case.split()[0])
    assert family_of(f"{{% x %}} {family.signs[0]} {{% y %}}") is family
    return Reading(family, {}, ("<think>", "</think>"))


@pytest.mark.parametrize("case", WRITTEN)
@pytest.mark.parametrize("before", ["", "<think>\nhm\n</think>\n\n"])
def test_calls_are_read_whole_and_in_pieces(case, before):
    written, text, calls = WRITTEN[case]
    expected = Answer(
        "hm" if before else "", text, tuple(ToolCall(str(place), *call) for place, call in enumerate(calls))
    )
    assert parse_answer(before + written, reading_of(case), str) == expected
    for size in (1, 2, 5):
        parser, parts = AnswerParser(reading_of(case), str), []
        for start in range(0, len(before + written), size):
            parts += parser.feed((before + written)[start : start + size])
        assert Answer.of_parts([*parts, *parser.finish()]) == expected, size


@pytest.mark.parametrize("case", [case for case, (_, _, calls) in WRITTEN.items() if len(calls) > 1])
def test_one_call_is_kept_where_several_are_not_wanted(case):
    written, text, (first, _) = WRITTEN[case]
    reading = replace(reading_of(case), several_calls=False)
    expected = Answer("", text, (ToolCall("0", *first),))
    assert parse_answer(written, reading, str) == expected
    parser, parts = AnswerParser(reading, str), []
    for letter in written:
        parts += parser.feed(letter)
    assert Answer.of_parts([*parts, *parser.finish()]) == expected


def test_text_without_marks_comes_through_as_it_is():
    for text in (" a < b \n", "1 <tool", "<thin", "\n\n"):
        assert parse_answer(text, reading_of("hermes"), str) == Answer(text=text)
        parser = AnswerParser(Reading(), str)
        assert Answer.of_parts([*parser.feed(text), *parser.finish()]) == Answer(text=text)


def test_reasoning_opened_by_the_prompt_and_never_closed():
    opened = Reading(None, None, reasoning_marks("... [THINK] ..."), in_reasoning=True)
    assert parse_answer("\nso[/THINK]\nyes\n", opened, str) == Answer("so", "yes\n")
    assert parse_answer("\nso on", opened, str) == Answer("so on")
    assert reasoning_marks("{{ messages }}") is None and family_of("{{ messages }}").name == "hermes"


def test_strings_stay_strings_where_the_schema_says_so():
    schemas = {"f": {"properties": {"zip": {"type": "string"}}}}
    written = "<tool_call><function=f><parameter=zip>00123</parameter><parameter=n>3</parameter></function></tool_call>"
    [call] = parse_answer(written, Reading(family_of("<tool_call>"), schemas), str).calls
    assert call.arguments == '{"zip": "00123", "n": 3}'
