"""Findings on a terminal: one block per cause, however many places it has."""

from rich.console import Console

from rldbg.core import Finding, Severity
from rldbg.reports.findings import to_terminal


def shown(*findings):
    console = Console(width=100)
    with console.capture() as captured:
        console.print(to_terminal(findings))
    return captured.get()


def test_places_of_one_cause_are_listed_under_it():
    first = Finding("ratio", Severity.ERROR, "step 0", ("ratio 2",), "wrong weights", ("check the sync",))
    later = Finding("ratio", Severity.ERROR, "step 3", ("ratio 5",), "wrong weights", ("check the sync",))
    text = shown(first, later)
    assert text.count("wrong weights") == text.count("check the sync") == 1
    assert "✗ ratio  step 0" in text and "also at step 3: ratio 5" in text


def test_other_causes_keep_a_block_of_their_own():
    one = Finding("ratio", Severity.ERROR, "step 0", (), "wrong weights", ())
    other = Finding("ratio", Severity.ERROR, "step 0", (), "another temperature", ())
    text = shown(one, other)
    assert "wrong weights" in text and "another temperature" in text and "also at" not in text
