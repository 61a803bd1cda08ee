"""`--help` of every verb: each has an example that the command line accepts, and each option says what it does."""

import re
import subprocess
import sys

import click
import pytest

from documented_commands import commands, complaint
from rldbg.cli.application import application
from rldbg.cli.verbs import VERBS

SHOWN = [verb.name for verb in VERBS if not verb.hidden]


def command_of(name):
    command = application.get_command(click.Context(application), name)
    assert command is not None
    return command


def examples(name):
    """Lines of the help that begin with `rldbg`; what explains them stands in a second column."""
    lines = (line.strip() for line in (command_of(name).help or "").splitlines())
    return [re.split(r" {3,}", line)[0] for line in lines if line.startswith("rldbg ")]


@pytest.mark.parametrize("name", SHOWN)
def test_the_help_has_examples_and_they_are_accepted(name):
    shown = [words for line in examples(name) for words in commands(line) if words[0] == "rldbg"]
    assert any(words[1] == name for words in shown)
    assert [said for words in shown if (said := complaint(words))] == []


@pytest.mark.parametrize("name", SHOWN)
def test_the_help_fits_a_terminal_of_80_columns(name):
    context = click.Context(command_of(name), info_name=f"rldbg {name}", terminal_width=80, max_content_width=80)
    assert [line for line in command_of(name).get_help(context).splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("name", SHOWN)
def test_every_option_says_what_it_does(name):
    command = command_of(name)
    below = list(command.commands.values()) if isinstance(command, click.Group) else []
    options = [each for one in (command, *below) for each in one.params if isinstance(each, click.Option)]
    assert [each.opts[0] for each in options if not re.sub(r"\[.*?\]", "", each.help or "").strip()] == []


@pytest.mark.parametrize("words", [["profile", "report"], ["profile", "timeline"], ["serve", "up"]])
def test_a_command_below_a_verb_takes_both_names_of_help(words):
    """In a process of its own: click keeps the names that a command was first asked with."""
    asked = [[sys.executable, "-m", "rldbg", *words, name] for name in ("-h", "--help")]
    short, long = (subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in asked)
    assert short == long
    assert f"Usage: rldbg {' '.join(words)}" in short
