"""Filter expressions: what they select, and that they reach nothing else."""

import numpy as np
import pytest

from rldbg.core import UsageError
from rldbg.ui.filtering import matching

COLUMNS = {
    "reward": np.array([0.0, 1.0, np.nan, 2.0]),
    "length": np.array([5, 50, 500, 5000]),
    "group": np.array(["g1", "g22", "h1", "a and b"], object),
}


@pytest.mark.parametrize(
    ("expression", "rows"),
    [
        ("", [0, 1, 2, 3]),
        ("reward >= 1", [1, 3]),
        ("not reward >= 1", [0, 2]),
        ("0 < length < 100 or reward == 2", [0, 1, 3]),
        ('group == "g1"', [0]),
        ('"g" in group and length > 5', [1]),
        ('"1" not in group', [1, 3]),
        ("isnan(reward)", [2]),
        ("length / 10 + 1 > -abs(-51)", [0, 1, 2, 3]),
        ("True", [0, 1, 2, 3]),
    ],
)
def test_expressions_select_rows(expression, rows):
    assert np.flatnonzero(matching(expression, COLUMNS, 4)).tolist() == rows


@pytest.mark.parametrize(
    "expression",
    [
        "reward >",
        "__import__('os').system('true')",
        "reward.__class__",
        "[x for x in group]",
        "group < 3",
        "rewrad > 1",
        "(lambda: 1)()",
        "length ** 99999999",
        "x" * 5000,
        "(" * 900 + "1" + ")" * 900,
        '"a" in length',
        "1 in (1, 2)",
        "\0",
        '"a" * 99999999999 in group',
        "group * 99999999999 == 1",
    ],
)
def test_other_expressions_are_refused_with_a_reason(expression):
    if expression == '"a" in length':  # a text is never part of a number
        assert not matching(expression, COLUMNS, 4).any()
        return
    with pytest.raises(UsageError):
        matching(expression, COLUMNS, 4)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("reward >", "ends too early"),
        ("reward > 1 group", "cannot read 'group'"),
        ("(reward > 1", "never closed"),
        ("reward = 1", "use =="),
        ("reward > 1 && length < 3", "use and"),
        ("group > 3", "a string and a number"),
        ('reward > "a"', "a string and a number"),
    ],
)
def test_what_is_wrong_is_told(expression, reason):
    with pytest.raises(UsageError) as refused:
        matching(expression, COLUMNS, 4)
    assert reason in f"{refused.value.message} {refused.value.hint}"


def test_a_misspelt_column_is_corrected():
    with pytest.raises(UsageError, match="rewrad") as refused:
        matching("rewrad > 1", COLUMNS, 4)
    assert "did you mean 'reward'" in refused.value.hint
