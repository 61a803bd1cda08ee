"""Every command that README, documentation and skills show exists, with every option that they show."""

import pytest

from documented_commands import complaint, pages, shown_commands


def test_every_command_and_option_exists():
    found = [(place, command) for page in pages() for place, command in shown_commands(page)]
    assert len(found) > 200
    wrong = [f"{place}: {' '.join(command)}: {said}" for place, command in found if (said := complaint(command))]
    assert wrong == []


@pytest.mark.parametrize("line", ["rldbg chekc RUN", "rldbg check RUN --stpe 3", "rldbg serve upp", "rldbg --nothing"])
def test_a_command_that_does_not_exist_is_noticed(line):
    assert complaint(line.split())


@pytest.mark.parametrize(
    "line",
    ["rldbg check RUN --step 3", "rldbg run --record -- python a.py --x", "rldbg serve up --model tiny", "rldbg VERB"],
)
def test_a_command_that_exists_passes(line):
    assert complaint(line.split()) == ""
