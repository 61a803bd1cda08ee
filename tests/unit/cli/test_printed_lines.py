import io

from rldbg.cli.output import print_error, print_json, print_line, print_note


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
