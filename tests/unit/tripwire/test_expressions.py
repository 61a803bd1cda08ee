"""Expressions of users over measures."""

import math

import pytest

from rldbg.core import UsageError
from rldbg.tripwire.expressions import CannotEvaluate, WatchExpression

VALUES = {"reward": 0.2, "length": 300.0, "actor/pg_loss": -0.1, "kl": math.nan}
USUAL = {"reward": 0.6, "length": 100.0}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("reward < 0.3", True),
        ("reward < 0.1", False),
        ("0.1 < reward < 0.3", True),
        ("reward < 0.3 and length > 1000", False),
        ("reward > 0.3 or not length < 300", True),
        ("length > 2 * usual(length)", True),
        ("abs(actor_pg_loss) > 0.05", True),
        ("isnan(kl)", True),
        ("max(reward, kl) > 1", False),
        ("not_logged > 0", False),
    ],
)
def test_expressions(text: str, holds: bool) -> None:
    assert WatchExpression(text).holds(VALUES, USUAL) is holds


@pytest.mark.parametrize(
    "text",
    [
        "reward <",
        "open('x')",
        "reward.real > 0",
        "[1][0]",
        "'a' == 'a'",
        "lambda: 1",
        "reward ** 9 > 1",
        "max(reward) > 1",
        "abs()",
    ],
)
def test_what_is_not_an_expression_over_measures_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expression|function|arguments"):
        WatchExpression(text)


@pytest.mark.parametrize("text", ["reward / (length - 300) > 1", "kl < 1 or 1 / (reward - reward) > 0"])
def test_what_cannot_be_computed_says_why(text: str) -> None:
    with pytest.raises(CannotEvaluate, match="float division by zero"):
        WatchExpression(text).holds(VALUES, USUAL)


@pytest.mark.parametrize("text", ["1/0 > 1", "reward > 1 and max(reward, 1 / (2 - 2)) > 0", f"isnan({10**400})"])
def test_errors_of_constants_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"invalid expression: .*(by zero|too large)"):
        WatchExpression(text)
