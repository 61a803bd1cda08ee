"""`rldbg run --wait` with and without seconds."""

import sys
from types import SimpleNamespace

import click
import pytest

from rldbg.cli.application import application
from rldbg.cli.run import _holding_s, command


@pytest.mark.parametrize(
    ("words", "seconds"), [(["--wait", "--"], 600.0), (["--wait", "30", "--"], 30.0), (["--wait=0"], 0.0), ([], None)]
)
def test_a_crash_is_held_as_long_as_asked(words, seconds):
    context = command.make_context("run", [*words, "python", "train.py"])
    assert context.params["wait_s"] == seconds


def test_seconds_are_a_number():
    with pytest.raises(Exception, match="'soon' is not a valid float"):
        command.make_context("run", ["--wait", "soon", "--", "python", "train.py"])


@pytest.mark.parametrize("variable", ["RLDBG_RUN_WAIT", "RLDBG_RUN_WAIT_S"])
def test_an_option_is_read_from_the_variable_of_its_name(monkeypatch, variable):
    monkeypatch.setenv(variable, "3")
    with click.Context(application, info_name="rldbg", auto_envvar_prefix="RLDBG") as parent:
        run = application.get_command(parent, "run")
        context = run.make_context("run", ["--", "python", "train.py"], parent=parent)
        assert context.params["wait_s"] == 3.0
        assert run.make_context("run", ["--wait", "4", "--", "python"], parent=parent).params["wait_s"] == 4.0


@pytest.mark.parametrize(
    ("value", "seconds"), [(None, 600.0), ("", 600.0), ("0", 600.0), ("False", 600.0), ("true", 0.0), ("1", 0.0)]
)
def test_a_variable_that_denies_ci_is_not_ci(monkeypatch, value, seconds):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.delenv("CI", raising=False)
    if value is not None:
        monkeypatch.setenv("CI", value)
    assert _holding_s(None) == seconds
