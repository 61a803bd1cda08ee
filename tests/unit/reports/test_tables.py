"""Tables on narrow terminals: what a cell says is never cut."""

import pytest
from rich.console import Console
from rich.text import Text

from rldbg.reports.tables import Table, table

STAGES = [("old_log_probs", "different, after the first", "1,062,840", "1.78e+03"), ("loss", "equal", "12", "-0.00127")]


def printed(shown, width):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(shown, crop=False)
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", [30, 40, 80, 200])
def test_every_word_of_a_table_stays_whole_where_two_columns_fit(width):
    lines = printed(table("stage", "verdict", "compared", "max abs", rows=STAGES), width)
    words = " ".join(lines).split()
    assert {word for row in STAGES for cell in row for word in cell.split()} <= set(words)
    assert max(map(len, lines)) <= width


def test_columns_that_do_not_fit_go_to_a_table_below_beside_the_first():
    lines = printed(table("stage", "verdict", "compared", "max abs", rows=STAGES), 30)
    heads = [line.split() for line in lines if line.split()[0] == "stage"]
    assert heads == [["stage", "verdict"], ["stage", "compared"], ["stage", "max", "abs"]]
    assert [line.split() for line in lines[-2:]] == [["old_log_probs", "1.78e+03"], ["loss", "-0.00127"]]


def test_prose_wraps_and_names_do_not():
    lines = printed(table("bug", "description", rows=[("weights-not-synced", "given once and never again")]), 40)
    assert [line.split() for line in lines[1:]] == [["weights-not-synced", "given", "once", "and"], ["never", "again"]]


def test_a_word_wider_than_the_terminal_is_folded_not_cut():
    lines = printed(table("bug", "stage", rows=[("x" * 50, "trajectory")]), 40)
    assert "".join("".join(lines).split()).count("x") == 50
    assert "…" not in "".join(lines)


def test_a_path_may_be_folded_so_that_its_row_stays_together():
    shown = Table("who", box=None)
    shown.add_column("where", overflow="fold")
    shown.add_row("loop/0", "/a/folder/with/a/long/name/loop.py:30")
    assert [line.split()[0] for line in printed(shown, 30)][:2] == ["who", "loop/0"]


def test_only_a_preview_is_shortened():
    shown = table(
        "field", "value", rows=[("metrics", Text("[1, 2, 3, 4, 5, 6, 7]", overflow="ellipsis", no_wrap=True))]
    )
    assert printed(shown, 20)[1].endswith("…")
