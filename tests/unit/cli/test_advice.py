"""Texts of rldbg name only commands, options and settings that exist."""

import importlib
import re
from pathlib import Path

import click
import pytest

import rldbg
from rldbg.cli.verbs import VERBS
from rldbg.core import Environment
from rldbg.recording import KINDS, debug_block_from_environment, how_to_record, parse_debug_block

SOURCE = Path(rldbg.__file__).parent
# A command line in a message, a help text or a file of knowledge: up to a quote, a bracket, or what it runs.
COMMAND = re.compile(r"rldbg ([a-z-]+)((?: (?!-- )[^`\"'\n;,()]+)?)")
ALWAYS = {"--help", "--json"}


def options(command: click.Command) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union(ALWAYS, *(options(each) for each in inner))


def unknown_options(text: str):
    verbs = {verb.name: verb for verb in VERBS}
    for found in COMMAND.finditer(text):
        if found[1] not in verbs:
            continue
        command, words = importlib.import_module(verbs[found[1]].module).command, found[2].split(" -- ")[0].split()
        while words and isinstance(command, click.Group) and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        named = [re.match(r"\[?(--[a-z][a-z0-9_-]*)", word) for word in words]
        yield from (f"{found[0]}: {match[1]}" for match in named if match and match[1] not in options(command))


def test_a_command_with_an_unknown_option_is_noticed():
    assert list(unknown_options("try: rldbg compare A B --tolerance 1")) == [
        "rldbg compare A B --tolerance 1: --tolerance"
    ]


def test_every_command_in_a_text_has_its_options():
    files = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".yaml", ".md")]
    named = {path: list(unknown_options(path.read_text(encoding="utf-8"))) for path in files}
    assert {str(path): found for path, found in named.items() if found} == {}


@pytest.mark.parametrize("kind", [*KINDS, "my_own_kind"])
def test_what_records_a_kind_can_be_set(kind):
    lines = how_to_record(kind)
    assert lines
    for line in lines:
        if (switch := re.match(r"debug\.(\w+)\.(\w+): true", line)) is not None:
            assert kind in parse_debug_block({"enable_data_dump": True, switch[1]: {switch[2]: True}}).kinds()
        elif (variable := re.search(r"(WEAVER_\w+): (\w+)", line)) is not None:
            environment = {"WEAVER_DEBUG_DUMP_ENABLED": "1", "WEAVER_DEBUG_DUMP_DIR": "x", variable[1]: variable[2]}
            assert kind in debug_block_from_environment(Environment(environment)).kinds()
        else:
            assert f"record({kind!r}, ...)" in line
