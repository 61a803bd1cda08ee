"""Expressions of the knowledge: their structure, without the private modules of `re`."""

import pytest

from rldbg.doctor.search.anchors import NoAnchorError, anchors_of
from rldbg.doctor.search.expressions import Expression
from rldbg.doctor.search.syntax import Alternation, CharacterClass, Literal, RegexGroup, Repeat, parsed

INFINITE = float("inf")


@pytest.mark.parametrize(
    ("source", "tree"),
    [
        ("ab", (Literal("a"), Literal("b"))),
        (r"^\bx$", (Literal("x"),)),
        (r"[.]\x41", (Literal("."), Literal("A"))),
        ("(a|b)", (RegexGroup((Alternation(((Literal("a"),), (Literal("b"),))),)),)),
        ("(?:ab)c", (Literal("a"), Literal("b"), Literal("c"))),
        ("a{2,}?", (Repeat(2, INFINITE, (Literal("a"),)),)),
        ("a{1", (Literal("a"), Literal("{"), Literal("1"))),
        (r"[\d]+", (Repeat(1, INFINITE, (CharacterClass(narrow=True),)),)),
        (r"[]a-z]", (CharacterClass(narrow=False),)),
        (r"[^a]", (CharacterClass(narrow=False),)),
        (r"[0-9]", (CharacterClass(narrow=True),)),
    ],
)
def test_the_structure_of_an_expression(source: str, tree: object) -> None:
    assert parsed(source) == tree


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (r"(a)\1", "back-references"),
        (r"(?P<x>a)(?P=x)", "back-references"),
        (r"(a)(?(1)b|c)", "back-references"),
        (r"(?<=a)b", "look-behind"),
        (r"(?<!a)b", "look-behind"),
        (r"(a*)*", "inside a repetition"),
        (r".*\S+\w+", "3 wide repetitions"),
        (r"(?x) a b", "verbose"),
        (r"(", "not a regular expression"),
    ],
)
def test_what_could_take_long_is_refused(source: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Expression.checked(source)


def test_every_match_contains_an_anchor() -> None:
    assert anchors_of(r"NCCL error \d+ in (?:first place|second place)", both=False) == ("NCCL error",)
    assert anchors_of(r"(?:beginning|different)x") == ("beginning", "different")
    with pytest.raises(NoAnchorError):
        anchors_of(r"(?:optional text)?short")
