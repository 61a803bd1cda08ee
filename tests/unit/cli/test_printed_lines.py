import io
import os
import select
import subprocess
import sys

from rldbg.cli.output import print_error, print_json, print_line, print_note, print_result
from rldbg.core import Finding, Severity
from rldbg.reports.findings import to_terminal
from rldbg.reports.tables import table


def test_a_line_is_written_in_one_piece(monkeypatch):
    """Ranks share their terminal, and with PYTHONUNBUFFERED every piece is written at once."""
    pieces = []

    class Terminal(io.StringIO):
        def write(self, text):
            pieces.append(text)
            return len(text)

    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr("sys.stderr", Terminal())
    print_json({"a": 1})
    print_error({"message": "m", "hint": "h"}, as_json=True)
    print_error({"message": "m", "hint": "h"}, as_json=False)
    print_line("x")
    print_note("y")
    assert len(pieces) == 5 and all(piece.endswith("\n") for piece in pieces)


def test_a_line_is_there_while_the_verb_goes_on():
    program = "from rldbg.cli.output import print_line; print_line('here'); input()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        ready, _, _ = select.select([process.stdout], [], [], 60)
        process.stdin.write(b"\n")
        process.stdin.close()
        assert ready and process.stdout.read() == b"here\n"


def test_nothing_follows_the_text_of_a_line(capsys):
    """A reader of a pipe gets the text, not the width of a terminal."""
    long = Finding("id", Severity.ERROR, "here", ("word " * 60,), "cause")
    print_result(to_terminal([long]))
    print_result(table("one", "two", rows=[("a", ""), ("b", "longer")]))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert len([line for line in lines if line.startswith("    word")]) > 1
