"""A user's tool for verl's agent loop, and how it is called: an answer with a digit asks for the next one."""

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import function_tool


@function_tool
def successor(digit: int) -> str:
    """The next number.

    Args:
        digit: a number.
    """
    return str(digit + 1)


@ToolParser.register("digits")
class Digits(ToolParser):
    async def extract_tool_calls(self, responses_ids, tools=None):
        text = self.tokenizer.decode(responses_ids, skip_special_tokens=True)
        digits = [character for character in text if character.isdigit()]
        calls = [FunctionCall(name="successor", arguments=f'{{"digit": {digit}}}') for digit in digits[:1]]
        return text, calls
