"""`rldbg run --wait` with and without seconds."""

import pytest

from rldbg.cli.run import command


@pytest.mark.parametrize(
    ("words", "seconds"), [(["--wait", "--"], 600.0), (["--wait", "30", "--"], 30.0), (["--wait=0"], 0.0), ([], None)]
)
def test_a_crash_is_held_as_long_as_asked(words, seconds):
    context = command.make_context("run", [*words, "python", "train.py"])
    assert context.params["wait_s"] == seconds


def test_seconds_are_a_number():
    with pytest.raises(Exception, match="'soon' is not a valid float"):
        command.make_context("run", ["--wait", "soon", "--", "python", "train.py"])
