import ast
from pathlib import Path

import pytest

from rldbg.core import Environment, UsageError

SOURCE = Path(__file__).parents[3] / "src" / "rldbg"


def test_flags_numbers_and_lists():
    environment = Environment(
        {"WEAVER_DEBUG_DUMP_ENABLED": "1", "RANK": " 3 ", "WEAVER_DEBUG_DUMP_OPTIONS": "loss, ,forward_data,"}
    )
    assert environment.flag("WEAVER_DEBUG_DUMP_ENABLED")
    assert environment.integer("RANK", 0) == 3
    assert environment.names("WEAVER_DEBUG_DUMP_OPTIONS") == ("loss", "forward_data")
    assert environment.text("WEAVER_DEBUG_DUMP_DIR") == "debug_dump"


@pytest.mark.parametrize("name, value", [("RANK", "three"), ("WEAVER_DEBUG_DUMP_ENABLED", "maybe")])
def test_bad_values_name_the_variable(name, value):
    environment = Environment({name: value})
    with pytest.raises(UsageError, match=name):
        environment.integer(name, 0) if name == "RANK" else environment.flag(name)


def test_near_misses_are_named():
    assert Environment({"WEAVER_DEBUG_DUMP_ENABLE": "1"}).near_misses() == {
        "WEAVER_DEBUG_DUMP_ENABLE": "WEAVER_DEBUG_DUMP_ENABLED"
    }


def test_undeclared_variables_cannot_be_read():
    with pytest.raises(KeyError):
        Environment({"HOME": "/"}).text("HOME")


def test_the_environment_is_read_in_one_module_only():
    """The agent is the exception: it is standard library only and lives in the user's processes."""
    readers = set()
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if "agent" in file.parts or ("environ" not in text and "getenv" not in text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"} and _is_os(node.value):
                readers.add(str(file.relative_to(SOURCE)))
    assert readers == {"core/environment.py"}


def _is_os(node):
    return isinstance(node, ast.Name) and node.id == "os"
