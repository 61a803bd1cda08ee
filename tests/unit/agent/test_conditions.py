"""Conditions of the source, judged by the values that a frame has; nothing of the program is run."""

import ast
import sys

import pytest

from rldbg.agent.waits.code.resolving import holds
from rldbg.agent.waits.reading.objects import OwnFrame


class Buffer:
    def __init__(self):
        self.items, self.limit, self.closed, self.rate, self.name = [1, 2], 2, False, 0.5, "rollout"

    def here(self):
        wanted = 3
        assert wanted
        return OwnFrame(sys._getframe())


@pytest.mark.parametrize(
    ("condition", "held"),
    [
        ("len(self.items) >= self.limit", True),
        ("len(self.items) >= wanted", False),
        ("self.items", True),
        ("not self.items", False),
        ("self.rate > 0.25", True),
        ("self.closed", False),
        ("self.closed or self.limit == 2", True),
        ("self.closed and unknown", False),
        ("self.limit == 2 and unknown", None),
        ("unknown", None),
        ("not unknown", None),
        ("self.name == 'rollout'", True),
        ("self.name != 'rollout'", False),
        ("'rollout' in self.items", False),
        ("2 in self.items", True),
        ("3 not in self.items", True),
        ("self.name is None", False),
        ("self.name is not None", True),
        ("self.rate is unknown", None),
        ("1 < self.limit < 3", None),
        ("self.full()", None),
        ("max() > 1", None),
        ("len() > 1", None),
    ],
)
def test_a_condition_holds_does_not_hold_or_cannot_be_told(condition, held):
    assert holds(ast.parse(condition, mode="eval").body, Buffer().here()) is held
