"""Settings: declared once, checked in one wording, documented from their declaration."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from rldbg.core import UsageError
from rldbg.core.settings import check_values, described, setting, validated


@dataclass(frozen=True, slots=True)
class Inner:
    size: int = setting(2, at_least=1)
    """How large."""


@dataclass(frozen=True, slots=True)
class Outer:
    mode: Literal["fast", "slow"] = "fast"
    """How quick."""
    rate: float | None = setting(None, above=0)
    inner: Inner = field(default_factory=Inner)
    """What is inside."""


def read(data):
    return validated(Outer, data, source="a.yaml", page="config.md", name="block", others=("theirs",))


def test_plain_data_becomes_settings():
    assert read(None) == Outer()
    assert read({"rate": 1, "inner": {"size": "3"}}) == Outer(rate=1.0, inner=Inner(3))


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        ({"mood": 1}, "a.yaml: unknown key 'block.mood'", "did you mean 'mode'?"),
        ({"thirs": 1}, "a.yaml: unknown key 'block.thirs'", "did you mean 'theirs'?"),
        ({"inner": {"theirs": 1}}, "a.yaml: unknown key 'block.inner.theirs'", "valid names: size"),
        ({"mode": "x"}, "a.yaml: invalid block.mode: 'x' (expected 'fast' or 'slow')", "docs/config.md"),
        ({"inner": {"size": 0}}, "a.yaml: invalid block.inner.size: 0", "block.inner.size to a value of at least 1"),
        ({"rate": 0}, "a.yaml: invalid block.rate: 0.0", "a value above 0"),
        ([1], "a.yaml: block is not a mapping", "`block:`"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(data, message, hint):
    with pytest.raises(UsageError) as caught:
        read(data)
    assert caught.value.message == message and hint in caught.value.hint


def test_settings_made_in_python_are_checked_too():
    with pytest.raises(UsageError) as caught:
        check_values(Outer(mode="medium"))  # type: ignore[arg-type]
    assert caught.value.hint == "set mode to one of fast, slow"
    check_values(Outer())


def test_the_string_under_a_field_is_its_documentation():
    assert [tuple(item) for item in described(Outer)] == [
        ("mode", "fast", "How quick."),
        ("rate", None, ""),
        ("inner", Inner(), "What is inside."),
    ]
