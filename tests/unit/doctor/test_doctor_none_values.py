"""Which name is None in a failing line: said only where the line leaves one or two that it can be."""

import pytest

from rldbg.doctor.clues.none_values import none_in_line
from rldbg.doctor.logs.cleaning import Speaker
from rldbg.doctor.logs.evidence import Failure, LogPlace

PLACE = LogPlace("x.log", 1, 0, Speaker(), None)
TIMES = "unsupported operand type(s) for *: 'int' and 'NoneType'"
NO_ITEMS = "'NoneType' object is not subscriptable"
NOT_ITERABLE = "'NoneType' object is not iterable"


@pytest.mark.parametrize(
    ("kind", "said", "code", "told"),
    [
        (
            "TypeError",
            TIMES,
            "n = args.width * args.rows // args.seams",
            "args.rows is None: the setting rows (--rows)",
        ),
        ("TypeError", TIMES, "n = 4 * self.rows", "self.rows is None"),
        ("TypeError", TIMES, "n = rows * find(seam)", "what find(seam) returned is None"),
        (
            "TypeError",
            TIMES.replace("'int' and 'NoneType'", "'NoneType' and 'int'"),
            "n = a * 3 + b * 2.5",
            "a is None",
        ),
        (
            "TypeError",
            TIMES.replace("*", "+="),
            "total += cfg.margin",
            "cfg.margin is None: the setting margin was not given",
        ),
        (
            "TypeError",
            "'<' not supported between instances of 'NoneType' and 'int'",
            "if self.limit < 3:",
            "self.limit is None",
        ),
        (
            "AttributeError",
            "'NoneType' object has no attribute 'seam'",
            "return frob.find(x).seam.width",
            "what frob.find(x) returned is None",
        ),
        (
            "AttributeError",
            "'NoneType' object has no attribute 'lower'",
            "elif config.data.kind.lower() == 'a':",
            "the setting data.kind was not given",
        ),
        ("TypeError", NO_ITEMS, 'rows = batch["seam"]', "batch is None"),
        ("TypeError", NO_ITEMS, "for row in table[3]:", "table is None"),
        ("TypeError", NOT_ITERABLE, "for row in self.rows:", "self.rows is None"),
        ("TypeError", NOT_ITERABLE, "out = [f(x) for x in rows]", "rows is None"),
        ("TypeError", "object of type 'NoneType' has no len()", "assert len(self.rows) == n,", "self.rows is None"),
        ("TypeError", "'NoneType' object is not callable", "self.scorer(", "self.scorer is None"),
        (
            "TypeError",
            "argument of type 'NoneType' is not iterable",
            'if "a" in args.kinds:',
            "args.kinds is None: the setting",
        ),
        (
            "TypeError",
            "cannot unpack non-iterable NoneType object",
            "a, b = self.find(x)",
            "what self.find(x) returned is None",
        ),
        ("TypeError", TIMES, "x = a * b + c * d", "b or d is None"),
    ],
)
def test_the_name_that_is_none_is_told(kind, said, code, told):
    assert told in none_in_line(Failure(kind, said, PLACE, ("/w/a.py:3 in f",), code))


def test_what_a_model_does_not_have_is_no_setting():
    said = "'NoneType' object has no attribute 'seam'"
    failure = Failure("AttributeError", said, PLACE, ("/w/a.py:3 in f",), "x = model.config.head.seam")
    assert none_in_line(failure) == "model.config.head is None"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (TIMES, "x = a * b + c * d + e * f"),  # any of three
        (TIMES, "x = compute(a, b)"),  # it was not this line
        (TIMES, "x = 3 * 4"),
        (TIMES, 'x = (a "'),
        (TIMES, ""),
        ("unsupported operand type(s) for *: 'int' and 'str'", "x = a * b"),
        ("'NoneType' object has no attribute 'seam'", "x = a.b.width"),
        (NO_ITEMS, "x = a.b"),
    ],
)
def test_nothing_is_guessed(said, code):
    assert none_in_line(Failure("TypeError", said, PLACE, ("/w/a.py:3 in f",), code)) == ""


def test_the_setting_that_was_not_given_is_the_headline(verdict):
    log = f"""Traceback (most recent call last):
  File "/w/quilt/sew.py", line 3, in sew
    rows = args.seam_count * args.seam_rows // args.seam_size
TypeError: {TIMES}
"""
    found = verdict(log)
    assert "seam_rows (--seam-rows)" in found.headline
    assert "--seam-rows" in "".join(found.root_causes[0].fix[:1] if found.root_causes else found.next)
